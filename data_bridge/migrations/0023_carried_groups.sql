-- With --remainder carry, judged groups that are left over at the end of a pass wait here for the next one, by
-- reference: their verdicts are here, their rows in the game's tables. A group has been used when a batch holds its rows.
CREATE TABLE hindsight.carried (
    model          text        NOT NULL,
    number         bigint      GENERATED ALWAYS AS IDENTITY,
    run_id         text        NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    group_id       text        NOT NULL,
    window_id      text        NOT NULL,
    trajectory_ids text[]      NOT NULL,
    agent_ids      text[]      NOT NULL,
    record         jsonb       NOT NULL,
    carried_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, number),
    UNIQUE (model, run_id, group_id)
);
CREATE INDEX carried_by_window ON hindsight.carried (model, window_id);
COMMENT ON COLUMN hindsight.carried.run_id IS 'The run that judged it; another may train it.';

-- A lineage may begin with another's checkpoint (--init-from): its step 1 has no batch.
CREATE TABLE hindsight.beginnings (
    model       text        NOT NULL,
    step        integer     NOT NULL,
    from_model  text        NOT NULL,
    from_step   integer     NOT NULL,
    base_model  text        NOT NULL,
    backend     text        NOT NULL,
    location    text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, step)
);
