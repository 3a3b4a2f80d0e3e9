-- A batch whose checkpoint was damaged or deleted after it was recorded: its trajectories are free again.
ALTER TABLE hindsight.batches DROP CONSTRAINT batches_state_check;
ALTER TABLE hindsight.batches ADD CONSTRAINT batches_state_check
    CHECK (state IN ('prepared', 'submitted', 'trained', 'failed', 'lost'));
