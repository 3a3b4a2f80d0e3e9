-- Groups that show a significant error pattern count more in their step; the weights are part of the reward history.
ALTER TABLE hindsight.rewards
    ADD COLUMN emphasis float8 NOT NULL DEFAULT 1, ADD COLUMN pattern_weight float8 NOT NULL DEFAULT 1;
COMMENT ON COLUMN hindsight.rewards.emphasis IS
    'What the group counts by the error patterns that it shows; read, not computed. 1: it shows none, or before 0029.';
COMMENT ON COLUMN hindsight.rewards.pattern_weight IS
    'The emphasis, divided so that the credits of the step are together as large as without.';
