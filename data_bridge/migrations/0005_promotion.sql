-- Which checkpoint the agents use, why, and on what evidence.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.evaluations (
    evaluation_id  text        PRIMARY KEY,
    run_id         text        REFERENCES hindsight.runs ON DELETE SET NULL,
    model          text        NOT NULL,
    candidate_step integer     NOT NULL,
    incumbent_step integer     NOT NULL,
    judge          text        NOT NULL,
    windows        integer     NOT NULL,
    gain           float8      NOT NULL,
    gain_low       float8,
    gain_high      float8,
    ruling         text        CHECK (ruling IN ('promote', 'refuse', 'undecided')),
    reasons        text[]      NOT NULL DEFAULT '{}',
    report         jsonb       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX evaluations_by_candidate ON hindsight.evaluations (model, candidate_step, created_at DESC);
CREATE INDEX evaluations_by_run ON hindsight.evaluations (run_id);
COMMENT ON COLUMN hindsight.evaluations.run_id IS 'NULL for a comparison that was asked for by hand.';
COMMENT ON COLUMN hindsight.evaluations.incumbent_step IS '0: the untrained base model.';
COMMENT ON COLUMN hindsight.evaluations.ruling IS 'NULL until the gate was asked.';
COMMENT ON COLUMN hindsight.evaluations.report IS 'Everything measured, as trainer/evaluation/evidence.py decodes it.';

CREATE TABLE hindsight.promotions (
    promotion_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model         text        NOT NULL,
    step          integer     NOT NULL,
    kind          text        NOT NULL CHECK (kind IN ('promotion', 'rollback')),
    state         text        NOT NULL CHECK (state IN ('canary', 'serving', 'superseded', 'rolled_back')),
    forced        boolean     NOT NULL DEFAULT false,
    reason        text        NOT NULL,
    outcome       text,
    evaluation_id text        REFERENCES hindsight.evaluations,
    base_model    text        NOT NULL,
    backend       text        NOT NULL,
    location      text        NOT NULL,
    base_url      text        NOT NULL,
    served_model  text        NOT NULL,
    canary_share  float8      CHECK (canary_share > 0 AND canary_share < 1),
    canary_after  text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    serving_since timestamptz,
    ended_at      timestamptz
);
-- The pointer: the one row of a model in state 'serving'. Postgres itself refuses a second.
CREATE UNIQUE INDEX one_serving ON hindsight.promotions (model) WHERE state = 'serving';
CREATE UNIQUE INDEX one_canary ON hindsight.promotions (model) WHERE state = 'canary';
COMMENT ON COLUMN hindsight.promotions.step IS '0: the untrained base model.';
COMMENT ON COLUMN hindsight.promotions.outcome IS 'Why it left the state before: what a canary showed, why it was rolled back.';
COMMENT ON COLUMN hindsight.promotions.base_url IS 'OpenAI-compatible endpoint that serves it, and served_model its name there.';
COMMENT ON COLUMN hindsight.promotions.canary_after IS 'The newest window when the canary began: later ones show how it does.';

CREATE TABLE hindsight.canary_agents (
    promotion_id bigint NOT NULL REFERENCES hindsight.promotions ON DELETE CASCADE,
    agent_id     text   NOT NULL,
    PRIMARY KEY (promotion_id, agent_id)
);
