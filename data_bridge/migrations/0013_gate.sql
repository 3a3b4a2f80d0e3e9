-- The gate's looks, so that looking often buys nothing, and where training went back.
ALTER TABLE hindsight.evaluations ADD COLUMN look integer;
ALTER TABLE hindsight.evaluations ADD COLUMN harm_chance double precision;
ALTER TABLE hindsight.evaluations ADD COLUMN expected_gain double precision;
ALTER TABLE hindsight.evaluations ADD COLUMN ruled_at timestamptz;
COMMENT ON COLUMN hindsight.evaluations.look IS 'Number of the look at this candidate that the ruling was; null: no ruling, or guards alone decided.';
COMMENT ON COLUMN hindsight.evaluations.harm_chance IS 'What the look spent of the yearly budget for handing out a worse release.';
COMMENT ON COLUMN hindsight.evaluations.expected_gain IS 'Of a promotion: the gain, corrected for having been selected.';
UPDATE hindsight.evaluations SET ruled_at = created_at WHERE ruling IS NOT NULL;

ALTER TABLE hindsight.checkpoints ADD COLUMN parent_step integer;
COMMENT ON COLUMN hindsight.checkpoints.parent_step IS 'The step it started from (0: the base model); null: the one before it.';
