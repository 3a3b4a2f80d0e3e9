-- A row that is itself at fault stays left out while its content is the same.
ALTER TABLE hindsight.exclusions ADD COLUMN content_hash text NOT NULL DEFAULT '';
CREATE INDEX exclusions_by_window ON hindsight.exclusions (window_id, reason);
COMMENT ON COLUMN hindsight.exclusions.content_hash IS
    'Hash of stepsJson as it was read; empty where the row was not decoded, and before this migration.';
