-- Keys with which agents and teams send their own rows. A row is stamped with what its key is for.
CREATE TABLE hindsight.ingest_keys (
    key_id     text        PRIMARY KEY,
    digest     text        NOT NULL UNIQUE,
    kind       text        NOT NULL CHECK (kind IN ('agent', 'team', 'game')),
    owner      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
COMMENT ON COLUMN hindsight.ingest_keys.digest IS 'SHA-256 of the key, which is shown once and stored nowhere.';
COMMENT ON COLUMN hindsight.ingest_keys.owner IS 'The agent, or the team whose name begins its agents'' ids; of the game its name.';
