-- Advice: what the promoted release would do, whether it was shown, whether it was taken, and what came of it.
CREATE TABLE hindsight.advice (
    advice_id       text        PRIMARY KEY,
    digest          text        NOT NULL UNIQUE,
    at              timestamptz NOT NULL DEFAULT now(),
    model           text        NOT NULL,
    release         text        NOT NULL,
    agent_id        text        NOT NULL,
    window_id       text        NOT NULL,
    asked_by        text        NOT NULL,
    is_vouched      boolean     NOT NULL,
    messages        jsonb       NOT NULL,
    state           text        NOT NULL CHECK (state IN ('shown', 'abstained', 'control')),
    reason          text        NOT NULL DEFAULT '',
    proposal        text,
    answer          text,
    explanation     text        NOT NULL DEFAULT '',
    agreement       float8,
    likelihood      float8,
    score           float8,
    confidence      float8,
    threshold       float8,
    calibration_id  bigint,
    samples         integer     NOT NULL DEFAULT 0,
    latency_ms      float8      NOT NULL DEFAULT 0,
    taken           boolean,
    taken_by        text        CHECK (taken_by IN ('agent', 'game', 'log')),
    trajectory_id   text,
    "right"         boolean,
    right_by        text        CHECK (right_by IN ('game', 'facts')),
    decision_right  boolean,
    decision_by     text        CHECK (decision_by IN ('game', 'facts')),
    settled_at      timestamptz,
    returned        text        NOT NULL DEFAULT ''
);
CREATE INDEX advice_by_time ON hindsight.advice (model, at DESC, advice_id DESC);
CREATE INDEX advice_by_agent ON hindsight.advice (agent_id);
CREATE INDEX advice_to_settle ON hindsight.advice (window_id) WHERE settled_at IS NULL;
COMMENT ON COLUMN hindsight.advice.digest IS 'Of model, agent, window and messages: the same question is asked once.';
COMMENT ON COLUMN hindsight.advice.is_vouched IS
    'Whether the game asked, or its log has the very same messages: only then does its outcome calibrate anything.';
COMMENT ON COLUMN hindsight.advice.state IS
    'control: drawn to get none; its proposal is kept and was not shown, as that of an abstention.';
COMMENT ON COLUMN hindsight.advice.taken_by IS 'Who says so: the game''s log counts more than the agent''s word.';
COMMENT ON COLUMN hindsight.advice."right" IS 'Whether the proposal was right, by the game''s prices or the game''s key.';
COMMENT ON COLUMN hindsight.advice.decision_right IS 'Whether what the agent did in fact was right, by the same.';

-- What a release's confidence is calibrated on: a score, and whether the proposal turned out right.
CREATE TABLE hindsight.advice_labels (
    label_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model     text        NOT NULL,
    release   text        NOT NULL,
    source    text        NOT NULL CHECK (source IN ('held_out', 'advice')),
    key       text        NOT NULL,
    window_id text        NOT NULL,
    score     float8      NOT NULL,
    is_right  boolean     NOT NULL,
    added_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (model, release, key)
);
CREATE INDEX advice_labels_by_window ON hindsight.advice_labels (model, release, window_id DESC);
COMMENT ON COLUMN hindsight.advice_labels.key IS 'The advice, or the decision point of a window after all that was trained.';

CREATE TABLE hindsight.advice_calibrations (
    calibration_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model          text        NOT NULL,
    release        text        NOT NULL,
    target         float8      NOT NULL,
    labels         integer     NOT NULL,
    last_label     bigint      NOT NULL,
    since          text        NOT NULL,
    curve          jsonb       NOT NULL,
    threshold      float8,
    precision_low  float8,
    coverage       float8      NOT NULL,
    error          float8,
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX advice_calibrations_newest ON hindsight.advice_calibrations (model, release, calibration_id DESC);
COMMENT ON COLUMN hindsight.advice_calibrations.curve IS 'Scores and the share that was right there, rising.';
COMMENT ON COLUMN hindsight.advice_calibrations.threshold IS 'The lowest score that is shown; null: nothing is.';
COMMENT ON COLUMN hindsight.advice_calibrations.since IS 'The oldest window that still counts, after the last change.';
