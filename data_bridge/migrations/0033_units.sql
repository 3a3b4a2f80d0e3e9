-- Work that is done somewhere else: a job is what one command hands to its workers, a unit a slice of a window. A worker
-- claims a unit with a lease and commits it with the number of its claim; only the last claim's number is accepted.

CREATE TABLE hindsight.unit_jobs (
    job_id        text             PRIMARY KEY,
    run_id        text             NOT NULL,
    settings      jsonb            NOT NULL,
    lease         interval         NOT NULL,
    workers       integer          NOT NULL,
    max_cost      double precision,
    committed_usd double precision NOT NULL DEFAULT 0,
    in_flight     integer          NOT NULL DEFAULT 0,
    is_open       boolean          NOT NULL DEFAULT true,
    created_at    timestamptz      NOT NULL DEFAULT now(),
    seen_at       timestamptz      NOT NULL DEFAULT now()
);
CREATE INDEX unit_jobs_by_run ON hindsight.unit_jobs (run_id);
COMMENT ON COLUMN hindsight.unit_jobs.run_id IS 'The run that pays; judging without training has no row in runs.';
COMMENT ON COLUMN hindsight.unit_jobs.seen_at IS 'When its driver was last heard of; its workers end a minute after.';
COMMENT ON COLUMN hindsight.unit_jobs.settings IS 'What a worker needs to know, fetched by it; never a secret.';
COMMENT ON COLUMN hindsight.unit_jobs.committed_usd IS
    'Paid, and set aside for calls in flight on all hosts. What a dead worker had set aside counts as paid.';

CREATE TABLE hindsight.units (
    job_id     text        NOT NULL REFERENCES hindsight.unit_jobs ON DELETE CASCADE,
    number     integer     NOT NULL,
    window_id  text        NOT NULL,
    unit       jsonb       NOT NULL,
    state      text        NOT NULL DEFAULT 'waiting',
    fence      integer     NOT NULL DEFAULT 0,
    holder     text,
    expires_at timestamptz,
    result     jsonb,
    done_at    timestamptz,
    PRIMARY KEY (job_id, number)
);
CREATE INDEX units_to_do ON hindsight.units (job_id, number) WHERE state <> 'done';
COMMENT ON COLUMN hindsight.units.fence IS 'How often it was claimed: a commit with an older number is refused.';

CREATE TABLE hindsight.unit_workers (
    job_id     text        NOT NULL REFERENCES hindsight.unit_jobs ON DELETE CASCADE,
    holder     text        NOT NULL,
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, holder)
);
