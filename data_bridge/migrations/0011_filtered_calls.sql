-- A call that the judge's endpoint refused because of what it was shown. A group is searched for the trajectory that
-- is at fault only once: what was refused, and which unusable replies there were, is found by the verdict's key.
ALTER TABLE hindsight.judge_calls DROP CONSTRAINT judge_calls_result_check;
ALTER TABLE hindsight.judge_calls ADD CONSTRAINT judge_calls_result_check
    CHECK (result IN ('ok', 'bad_reply', 'filtered', 'refused', 'busy', 'failed', 'timeout'));
CREATE INDEX judge_calls_unanswered ON hindsight.judge_calls (verdict_key) WHERE result IN ('bad_reply', 'filtered');
