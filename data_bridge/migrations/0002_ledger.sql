-- The trainer's memory: which run planned what, which batch was trained once, what was left out and why.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.runs (
    run_id      text        PRIMARY KEY,
    model       text        NOT NULL,
    base_model  text        NOT NULL,
    backend     text        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('running', 'done', 'interrupted', 'failed')),
    fingerprint text        NOT NULL,
    settings    jsonb       NOT NULL,
    plan        jsonb       NOT NULL DEFAULT '{}',
    summary     jsonb       NOT NULL DEFAULT '{}',
    host        text        NOT NULL,
    pid         integer     NOT NULL,
    attempts    integer     NOT NULL DEFAULT 1,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    error       text
);
CREATE INDEX runs_by_model ON hindsight.runs (model, started_at DESC);
COMMENT ON COLUMN hindsight.runs.fingerprint IS
    'Of the settings that decide groups and dropout: only a run with the same one can be taken up.';
COMMENT ON COLUMN hindsight.runs.settings IS 'Resolved configuration; secrets are only marked as set.';

-- One row a model: whoever holds it may train. A lease with a heartbeat, because a session's advisory lock does not
-- survive a pooler in transaction mode.
CREATE TABLE hindsight.model_locks (
    model        text        PRIMARY KEY,
    token        text        NOT NULL,
    holder       text        NOT NULL,
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    process      text        NOT NULL,
    taken_at     timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN hindsight.model_locks.process IS 'Start time of the process, so that a pid used again is not mistaken.';

CREATE TABLE hindsight.windows (
    run_id    text        NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    window_id text        NOT NULL,
    hours     integer     NOT NULL,
    state     text        NOT NULL CHECK (state IN ('planned', 'judged', 'trained', 'left_out')),
    groups    jsonb       NOT NULL,
    PRIMARY KEY (run_id, window_id)
);
CREATE INDEX windows_by_id ON hindsight.windows (window_id);
COMMENT ON COLUMN hindsight.windows.groups IS
    'Group id → trajectory ids, after dropout: what a run that is taken up again judges, so that no verdict is paid twice.';

CREATE TABLE hindsight.batches (
    batch_id     text        PRIMARY KEY,
    run_id       text        NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    model        text        NOT NULL,
    number       integer     NOT NULL,
    policy_step  integer     NOT NULL,
    state        text        NOT NULL CHECK (state IN ('prepared', 'submitted', 'trained', 'failed', 'lost')),
    job_id       text,
    groups       jsonb       NOT NULL,
    exclusions   jsonb       NOT NULL DEFAULT '[]',
    trainable_tokens bigint  NOT NULL,
    step         integer,
    metrics      jsonb       NOT NULL DEFAULT '{}',
    error        text,
    prepared_at  timestamptz NOT NULL DEFAULT now(),
    submitted_at timestamptz,
    finished_at  timestamptz,
    UNIQUE (run_id, number)
);
-- Steps of one model follow each other, so at most one of its batches is under way.
CREATE UNIQUE INDEX one_unfinished_batch ON hindsight.batches (model) WHERE state IN ('prepared', 'submitted');
COMMENT ON COLUMN hindsight.batches.groups IS
    'Composition with verdict keys, scores and judge: enough to finish the books of a batch whose process died.';
COMMENT ON COLUMN hindsight.batches.state IS
    'lost: its checkpoint was damaged or deleted after it was recorded; its trajectories are free again.';
COMMENT ON COLUMN hindsight.batches.job_id IS 'The backend''s receipt of the remote job, stored before the job is followed.';

CREATE TABLE hindsight.batch_trajectories (
    batch_id      text    NOT NULL REFERENCES hindsight.batches ON DELETE CASCADE,
    trajectory_id text    NOT NULL,
    model         text    NOT NULL,
    agent_id      text    NOT NULL,
    window_id     text    NOT NULL,
    group_id      text    NOT NULL,
    verdict_key   text    NOT NULL,
    score         float8  NOT NULL,
    has_tokens    boolean NOT NULL DEFAULT true,
    released      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (batch_id, trajectory_id)
);
-- Once: a trajectory is in one batch of a model, unless that batch failed and gave it back.
CREATE UNIQUE INDEX trained_once ON hindsight.batch_trajectories (model, trajectory_id) WHERE NOT released;
CREATE INDEX batch_trajectories_by_window ON hindsight.batch_trajectories (window_id);
COMMENT ON COLUMN hindsight.batch_trajectories.has_tokens IS
    'False for a member that only set the group''s mean; its exclusion says why its own tokens were not trained.';

CREATE TABLE hindsight.exclusions (
    run_id        text NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    trajectory_id text NOT NULL,
    agent_id      text NOT NULL,
    window_id     text NOT NULL,
    reason        text NOT NULL,
    detail        text NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, trajectory_id)
);
CREATE INDEX exclusions_by_reason ON hindsight.exclusions (run_id, reason);

CREATE TABLE hindsight.checkpoints (
    model      text        NOT NULL,
    step       integer     NOT NULL,
    run_id     text        NOT NULL REFERENCES hindsight.runs,
    batch_id   text        NOT NULL UNIQUE REFERENCES hindsight.batches,
    base_model text        NOT NULL,
    backend    text        NOT NULL,
    location   text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, step)
);
