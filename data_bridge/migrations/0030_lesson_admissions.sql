-- Lessons from outside that somebody put to the gate: which ones together, whose, and what came of it. The evaluation
-- and its ruling are those of every release; its lessons policy ends with the admission's id.

CREATE TABLE hindsight.lesson_admissions (
    admission_id text        PRIMARY KEY,
    game         text        NOT NULL,
    agent_id     text,
    asked_by     text        NOT NULL,
    asked_at     timestamptz NOT NULL DEFAULT now(),
    is_wanted    boolean     NOT NULL,
    outcome      text        NOT NULL DEFAULT '',
    tried_at     timestamptz
);
CREATE INDEX lesson_admissions_wanted ON hindsight.lesson_admissions (game, asked_at) WHERE is_wanted;
COMMENT ON COLUMN hindsight.lesson_admissions.admission_id IS 'Digest of its lessons: the same ones are the same admission.';
COMMENT ON COLUMN hindsight.lesson_admissions.agent_id IS 'Whose lessons were asked about; null: of all agents.';
COMMENT ON COLUMN hindsight.lesson_admissions.is_wanted IS 'Asked for, and no host has tried it since.';
COMMENT ON COLUMN hindsight.lesson_admissions.outcome IS 'What the last try came to, in a sentence.';

CREATE TABLE hindsight.admission_lessons (
    admission_id text NOT NULL REFERENCES hindsight.lesson_admissions ON DELETE CASCADE,
    lesson_id    text NOT NULL REFERENCES hindsight.lessons ON DELETE CASCADE,
    PRIMARY KEY (admission_id, lesson_id)
);
CREATE INDEX admission_lessons_by_lesson ON hindsight.admission_lessons (lesson_id);
