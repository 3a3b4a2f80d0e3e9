-- Which scheduled period was trained, by whom, and what came of it.
-- The primary key is what makes a period happen once on any number of hosts.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.periods (
    job          text        NOT NULL,
    period       timestamptz NOT NULL,
    state        text        NOT NULL CHECK (state IN ('running', 'done', 'skipped', 'failed')),
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    claim        text        NOT NULL,
    attempts     integer     NOT NULL DEFAULT 1,
    claimed_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    exit_code    integer,
    reason       text,
    PRIMARY KEY (job, period)
);

COMMENT ON COLUMN hindsight.periods.claim IS 'Random per claim: a host that lost its claim cannot finish it.';
