-- What verdicts taught, at hand when an agent decides: lessons, where they come from, and to which decision each was shown.

CREATE TABLE hindsight.lessons (
    lesson_id       text        PRIMARY KEY,
    kind            text        NOT NULL CHECK (kind IN ('episodic', 'semantic', 'procedural')),
    game            text        NOT NULL,
    role            text,
    agent_id        text,
    title           text        NOT NULL,
    content         text        NOT NULL,
    about           text        NOT NULL DEFAULT '',
    stance          smallint    NOT NULL DEFAULT 0 CHECK (stance IN (-1, 0, 1)),
    importance      float8      NOT NULL CHECK (importance BETWEEN 0 AND 1),
    support         integer     NOT NULL DEFAULT 1,
    contradictions  integer     NOT NULL DEFAULT 0,
    uses            integer     NOT NULL DEFAULT 0,
    last_used_at    timestamptz,
    usefulness      float8,
    scored_uses     integer     NOT NULL DEFAULT 0,
    trust           text        NOT NULL CHECK (trust IN ('verdict', 'judge', 'api')),
    known_at        timestamptz NOT NULL,
    made_at         timestamptz NOT NULL DEFAULT now(),
    gated_at        timestamptz,
    consolidated_at timestamptz,
    retired_at      timestamptz,
    retired_because text        NOT NULL DEFAULT '',
    merged_into     text,
    embedder        text,
    words           tsvector    NOT NULL GENERATED ALWAYS AS
                                (to_tsvector('pg_catalog.english', title || ' ' || content)) STORED,
    changed_in      xid8        NOT NULL DEFAULT pg_current_xact_id()
);
-- The scope comes first, then everything in it is compared: an approximate index behind a filter returns too few.
CREATE INDEX lessons_by_scope ON hindsight.lessons (game, role, agent_id) WHERE retired_at IS NULL;
CREATE INDEX lessons_by_change ON hindsight.lessons (game, changed_in);
CREATE INDEX lessons_to_embed ON hindsight.lessons (game) WHERE embedder IS NULL;
CREATE INDEX lessons_by_age ON hindsight.lessons (made_at DESC, lesson_id);
COMMENT ON COLUMN hindsight.lessons.lesson_id IS 'Digest of kind, scope and text: the same lesson twice is one row.';
COMMENT ON COLUMN hindsight.lessons.embedder IS 'The model of the embedding; null: not embedded yet, which whoever searches first does.';
COMMENT ON COLUMN hindsight.lessons.known_at IS 'In the game''s clock: no decision before it may be shown the lesson.';
COMMENT ON COLUMN hindsight.lessons.about IS 'The decision it is about, in a word: lessons about different ones are never merged.';
COMMENT ON COLUMN hindsight.lessons.stance IS '1: this worked; -1: this failed; 0: neither. What contradictions are counted by.';
COMMENT ON COLUMN hindsight.lessons.usefulness IS
    'Mean score of the decisions that it was shown to, above those of the same window that it was not shown to.';
COMMENT ON COLUMN hindsight.lessons.gated_at IS 'Of a lesson from outside (trust api): since when it may be shown to agents.';
COMMENT ON COLUMN hindsight.lessons.changed_in IS 'The transaction that last changed whether or how it is shown.';

-- pgvector where it can be had, otherwise plain numbers that are compared in our own memory.
DO $$
DECLARE home text;
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS vector SCHEMA hindsight;
    EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR undefined_object THEN
        RAISE NOTICE 'pgvector cannot be created here (%): lessons are compared in memory.', SQLERRM;
    END;
    SELECT n.nspname INTO home FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
     WHERE e.extname = 'vector';
    IF home IS NULL THEN
        ALTER TABLE hindsight.lessons ADD COLUMN embedding real[];
    ELSE
        EXECUTE format('ALTER TABLE hindsight.lessons ADD COLUMN embedding %I.vector', home);
    END IF;
END $$;

CREATE TABLE hindsight.lesson_sources (
    lesson_id     text        NOT NULL REFERENCES hindsight.lessons ON DELETE CASCADE,
    trajectory_id text        NOT NULL,
    agent_id      text        NOT NULL,
    window_id     text        NOT NULL,
    verdict_key   text        NOT NULL DEFAULT '',
    agrees        boolean     NOT NULL DEFAULT true,
    known_at      timestamptz NOT NULL,
    PRIMARY KEY (lesson_id, trajectory_id)
);
CREATE INDEX lesson_sources_by_window ON hindsight.lesson_sources (window_id);
CREATE INDEX lesson_sources_by_agent ON hindsight.lesson_sources (agent_id);
COMMENT ON COLUMN hindsight.lesson_sources.agrees IS 'False: an episode that speaks against the rule.';

-- Which verdicts were distilled: in the transaction of their lessons, so that a killed process doubles nothing.
CREATE TABLE hindsight.distilled (
    verdict_key text        NOT NULL,
    game        text        NOT NULL,
    method      text        NOT NULL,
    run_id      text,
    lessons     integer     NOT NULL,
    at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (verdict_key, game)
);

-- What an agent was shown when it decided, and later what the decision was worth.
CREATE TABLE hindsight.injections (
    decision_id   text        NOT NULL,
    lesson_id     text        NOT NULL,
    place         smallint    NOT NULL,
    policy        text        NOT NULL DEFAULT '',
    is_control    boolean     NOT NULL DEFAULT false,
    game          text        NOT NULL,
    agent_id      text        NOT NULL,
    window_id     text        NOT NULL,
    trajectory_id text,
    shown_at      timestamptz NOT NULL,
    score         float8,
    compared_with float8,
    scored_at     timestamptz,
    PRIMARY KEY (decision_id, lesson_id)
);
CREATE INDEX injections_by_lesson ON hindsight.injections (lesson_id);
CREATE INDEX injections_by_trajectory ON hindsight.injections (trajectory_id) WHERE trajectory_id IS NOT NULL;
CREATE INDEX injections_by_agent ON hindsight.injections (agent_id);
COMMENT ON COLUMN hindsight.injections.shown_at IS 'In the game''s clock: the time of the decision.';
COMMENT ON COLUMN hindsight.injections.is_control IS 'Shown by chance, as the control of a comparison.';
COMMENT ON COLUMN hindsight.injections.compared_with IS 'Mean score of the group that the decision was judged in.';

-- Which windows an evaluation consulted, beside its report: a lesson from one waits for a ruling.
CREATE TABLE hindsight.consultations (
    evaluation_id text NOT NULL REFERENCES hindsight.evaluations ON DELETE CASCADE,
    window_id     text NOT NULL,
    PRIMARY KEY (window_id, evaluation_id)
);
INSERT INTO hindsight.consultations (evaluation_id, window_id)
SELECT DISTINCT evaluation_id, seen ->> 'window_id'
  FROM hindsight.evaluations, jsonb_array_elements(report -> 'windows') AS seen
 WHERE jsonb_typeof(report -> 'windows') = 'array' AND seen ->> 'window_id' IS NOT NULL;
CREATE VIEW hindsight.unruled_windows AS
SELECT c.window_id FROM hindsight.consultations c JOIN hindsight.evaluations e USING (evaluation_id)
 GROUP BY c.window_id HAVING bool_and(e.ruling IS NULL);
COMMENT ON VIEW hindsight.unruled_windows IS 'Consulted by an evaluation, and no evaluation of it has a ruling yet.';
