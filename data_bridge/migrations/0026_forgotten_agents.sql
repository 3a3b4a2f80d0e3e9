-- Agents that were forgotten: each host takes them out of the folders of its own runs, which no other host can reach.
CREATE TABLE hindsight.forgotten (
    forgotten_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    agent_id       text        NOT NULL,
    trajectory_ids text[]      NOT NULL
);
CREATE INDEX forgotten_by_age ON hindsight.forgotten (at);
COMMENT ON TABLE hindsight.forgotten IS 'Kept as long as the audit log, which names the agent too.';
