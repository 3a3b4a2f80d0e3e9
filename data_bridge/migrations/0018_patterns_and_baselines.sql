-- What went wrong in each trajectory that a run read: the material of error patterns.
CREATE TABLE hindsight.observed (
    run_id        text  NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    trajectory_id text  NOT NULL,
    agent_id      text  NOT NULL,
    window_id     text  NOT NULL,
    faults        jsonb NOT NULL DEFAULT '[]',
    PRIMARY KEY (run_id, trajectory_id)
);
CREATE INDEX observed_by_trajectory ON hindsight.observed (trajectory_id);
COMMENT ON COLUMN hindsight.observed.faults IS
    'Codes, texts of errors and what the judge found weak; empty for most. Rows without faults are what the others are a share of.';

-- With --baseline, a member is compared with what is usual for its agent or role.
ALTER TABLE hindsight.rewards ADD COLUMN whose text NOT NULL DEFAULT '', ADD COLUMN baseline float8 NOT NULL DEFAULT 0;
COMMENT ON COLUMN hindsight.rewards.whose IS 'Whose running mean the baseline is, as agent:ID or role:NAME; empty without one.';

-- With --step-credit, a row is one decision.
ALTER TABLE hindsight.rewards ADD COLUMN step smallint;
COMMENT ON COLUMN hindsight.rewards.step IS 'The place of the decision, and score the return from there; null: the whole trajectory.';
