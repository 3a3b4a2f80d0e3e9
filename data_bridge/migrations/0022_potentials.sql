-- With --potential, the return of a decision is shaped by what the state was worth in which it was taken.
ALTER TABLE hindsight.rewards
    ADD COLUMN potential float8 NOT NULL DEFAULT 0, ADD COLUMN ahead smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN hindsight.rewards.potential IS 'Of the state in which the decision was taken.';
COMMENT ON COLUMN hindsight.rewards.ahead IS
    'Decisions of the trajectory from there on, itself included: with the rule''s discount they give the shaping. 0: none.';
