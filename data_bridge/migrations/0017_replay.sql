-- Replay: a group may be trained again, a bounded number of times. "Once" is once per use.
ALTER TABLE hindsight.batch_trajectories ADD COLUMN use smallint NOT NULL DEFAULT 1 CHECK (use BETWEEN 1 AND 3);
COMMENT ON COLUMN hindsight.batch_trajectories.use IS '1: when its group was fresh; 2 and 3: replayed.';
CREATE UNIQUE INDEX trained_once_per_use ON hindsight.batch_trajectories (model, trajectory_id, use) WHERE NOT released;
DROP INDEX hindsight.trained_once;

-- The newest groups of each model that were trained, by reference: their verdicts are with the batch, their rows in the
-- game's tables.
CREATE TABLE hindsight.replays (
    model         text     NOT NULL,
    number        bigint   GENERATED ALWAYS AS IDENTITY,
    batch_id      text     NOT NULL REFERENCES hindsight.batches ON DELETE CASCADE,
    group_id      text     NOT NULL,
    trajectory_id text     NOT NULL,
    step          integer  NOT NULL,
    spread        float8   NOT NULL,
    PRIMARY KEY (model, number),
    UNIQUE (batch_id, group_id)
);
CREATE INDEX replays_by_step ON hindsight.replays (model, step);
COMMENT ON COLUMN hindsight.replays.trajectory_id IS 'One of its members: how often the group was used is counted by it.';
COMMENT ON COLUMN hindsight.replays.step IS 'The step that it was first trained in.';
