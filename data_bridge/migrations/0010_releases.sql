-- A release is a checkpoint with a prompt version and a lessons policy; what was promoted before had neither.
ALTER TABLE hindsight.promotions ADD COLUMN prompt_version text NOT NULL DEFAULT '';
ALTER TABLE hindsight.promotions ADD COLUMN lessons_policy text NOT NULL DEFAULT '';
ALTER TABLE hindsight.evaluations ADD COLUMN prompt_version text NOT NULL DEFAULT '';
ALTER TABLE hindsight.evaluations ADD COLUMN lessons_policy text NOT NULL DEFAULT '';
COMMENT ON COLUMN hindsight.promotions.prompt_version IS 'Empty: the game''s own prompts.';
COMMENT ON COLUMN hindsight.promotions.lessons_policy IS 'Empty: no lessons are shown.';
COMMENT ON COLUMN hindsight.evaluations.prompt_version IS 'Of the candidate; empty: the game''s own prompts.';
COMMENT ON COLUMN hindsight.evaluations.lessons_policy IS 'Of the candidate; empty: no lessons are shown.';
