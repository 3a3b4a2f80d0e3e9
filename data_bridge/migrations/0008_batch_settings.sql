-- A run that is taken up again may be told otherwise (a lower learning rate): each batch keeps what it was made with.
ALTER TABLE hindsight.batches ADD COLUMN settings jsonb NOT NULL DEFAULT '{}';
UPDATE hindsight.batches SET settings = runs.settings FROM hindsight.runs WHERE runs.run_id = batches.run_id;
COMMENT ON COLUMN hindsight.batches.settings IS 'Of its run, when the batch was prepared.';
COMMENT ON COLUMN hindsight.runs.settings IS 'Resolved configuration of the newest attempt; secrets are only marked as set.';
