-- Prompts: their versions, which of them a release gives to whom, and the policy that learns which change helps.

CREATE TABLE hindsight.prompts (
    prompt_id text        NOT NULL,
    role      text        NOT NULL,
    text      text        NOT NULL,
    system    text        NOT NULL,
    examples  jsonb       NOT NULL,
    variables text[]      NOT NULL,
    parent    text,
    mutation  text        NOT NULL DEFAULT '',
    evidence  jsonb       NOT NULL DEFAULT '{}',
    made_by   text        NOT NULL,
    made_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (prompt_id, role)
);
CREATE INDEX prompts_by_age ON hindsight.prompts (made_at DESC, prompt_id);
COMMENT ON COLUMN hindsight.prompts.prompt_id IS 'Digest of the text: the same text twice is the same prompt.';
COMMENT ON COLUMN hindsight.prompts.role IS 'Whose prompt it is; empty: of every role that has none of its own.';
COMMENT ON COLUMN hindsight.prompts.evidence IS 'What was measured of it when it was made.';

CREATE TABLE hindsight.prompt_versions (
    prompt_version text        NOT NULL,
    role           text        NOT NULL,
    prompt_id      text        NOT NULL,
    PRIMARY KEY (prompt_version, role),
    FOREIGN KEY (prompt_id, role) REFERENCES hindsight.prompts (prompt_id, role)
);
COMMENT ON TABLE hindsight.prompt_versions IS 'What the prompt version of a release means: a prompt for each role.';

CREATE TABLE hindsight.policy_checkpoints (
    policy     text        NOT NULL,
    version    integer     NOT NULL CHECK (version > 0),
    parent     integer,
    weights    bytea,
    sha256     text        NOT NULL,
    losses     jsonb,
    made_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, version)
);
COMMENT ON COLUMN hindsight.policy_checkpoints.weights IS 'Null: neither one of the newest nor named, so not kept.';
COMMENT ON COLUMN hindsight.policy_checkpoints.losses IS 'Of the update that made it; null: new, or loaded.';

CREATE TABLE hindsight.policy_names (
    policy   text        NOT NULL,
    name     text        NOT NULL,
    version  integer     NOT NULL,
    named_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, name),
    FOREIGN KEY (policy, version) REFERENCES hindsight.policy_checkpoints (policy, version)
);

CREATE TABLE hindsight.policy_experience (
    policy        text        NOT NULL,
    experience_id text        NOT NULL,
    version       integer     NOT NULL,
    episode       text        NOT NULL,
    step          integer     NOT NULL,
    embedding     bytea       NOT NULL,
    action_mask   boolean[]   NOT NULL,
    action        smallint    NOT NULL,
    reward        float8      NOT NULL,
    done          boolean     NOT NULL,
    trained_in    integer,
    received_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, experience_id),
    FOREIGN KEY (policy, version) REFERENCES hindsight.policy_checkpoints (policy, version),
    FOREIGN KEY (policy, trained_in) REFERENCES hindsight.policy_checkpoints (policy, version),
    CHECK (trained_in IS NULL OR trained_in = version + 1)
);
CREATE INDEX policy_experience_waiting ON hindsight.policy_experience (policy, version) WHERE trained_in IS NULL;
COMMENT ON COLUMN hindsight.policy_experience.version IS 'Of the policy that acted: an update uses one version alone.';
COMMENT ON COLUMN hindsight.policy_experience.trained_in IS 'The version that was learnt from it; null: none yet.';
