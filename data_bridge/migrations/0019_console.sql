-- What the console shows live and what it is told to do: events, commands, hosts, and who did what.

-- Ids are handed out before a transaction commits, so a higher one can become visible first: a reader waits for a
-- missing id until every transaction that could still bring it has ended. For that, the transaction must have its
-- number before the event has its id, and an event is inserted accordingly (trainer/ledger/events.py).
CREATE TABLE hindsight.events (
    event_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction xid8        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind        text        NOT NULL CHECK (kind IN ('run', 'step', 'progress', 'ruling', 'release', 'command',
                                                     'collapse', 'budget')),
    model       text,
    run_id      text,
    data        jsonb       NOT NULL DEFAULT '{}',
    notified_at timestamptz
);
CREATE INDEX events_by_age ON hindsight.events (at);
CREATE INDEX events_to_notify ON hindsight.events (event_id)
    WHERE notified_at IS NULL AND kind IN ('run', 'release', 'collapse', 'budget');
COMMENT ON COLUMN hindsight.events.notified_at IS 'When a console took it on itself to tell the webhook.';

-- A start waits for any host that is idle; a stop for the heartbeat of whoever trains the model.
CREATE TABLE hindsight.commands (
    command_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text        NOT NULL CHECK (kind IN ('start', 'stop')),
    model           text        NOT NULL,
    state           text        NOT NULL DEFAULT 'waiting'
                                CHECK (state IN ('waiting', 'taken', 'done', 'failed', 'withdrawn')),
    settings        jsonb       NOT NULL DEFAULT '{}',
    idempotency_key text,
    digest          text        NOT NULL DEFAULT '',
    run_id          text,
    asked_by        text        NOT NULL,
    reason          text        NOT NULL DEFAULT '',
    taken_by        text,
    claim           text,
    attempts        integer     NOT NULL DEFAULT 0,
    exit_code       integer,
    outcome         text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    heartbeat_at    timestamptz,
    finished_at     timestamptz
);
-- Two clicks are one run: the same key is the same command, and a model has one start at a time.
CREATE UNIQUE INDEX one_command_per_key ON hindsight.commands (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX one_start_per_model ON hindsight.commands (model)
    WHERE kind = 'start' AND state IN ('waiting', 'taken');
CREATE INDEX commands_open ON hindsight.commands (kind, created_at) WHERE state IN ('waiting', 'taken');
COMMENT ON COLUMN hindsight.commands.settings IS 'As tables of run.toml; never a secret.';
COMMENT ON COLUMN hindsight.commands.digest IS 'Of what was asked: the same key for something else is refused.';
COMMENT ON COLUMN hindsight.commands.claim IS 'Random per host that took it: one that was taken over cannot finish it.';

-- Which hosts could take a command, and what they are doing.
CREATE TABLE hindsight.hosts (
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    part         text        NOT NULL CHECK (part IN ('console', 'scheduler')),
    doing        text        NOT NULL DEFAULT '',
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host, pid)
);

CREATE TABLE hindsight.audit (
    audit_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    who      text        NOT NULL,
    address  text        NOT NULL,
    deed     text        NOT NULL,
    target   text        NOT NULL,
    reason   text        NOT NULL DEFAULT '',
    outcome  text        NOT NULL DEFAULT 'asked'
);
CREATE INDEX audit_by_age ON hindsight.audit (at);
COMMENT ON COLUMN hindsight.audit.who IS 'Which key, never the key itself.';

ALTER TABLE hindsight.runs ADD COLUMN progress jsonb NOT NULL DEFAULT '{}';
ALTER TABLE hindsight.runs ADD COLUMN progress_at timestamptz;
COMMENT ON COLUMN hindsight.runs.progress IS 'How far the run is, as its process last said.';
