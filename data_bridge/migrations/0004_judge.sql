-- What judges said, what each call cost, and who is asking right now: so that no verdict is paid for twice.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.verdicts (
    verdict_key       text             NOT NULL,
    order_number      integer          NOT NULL,
    judge             text             NOT NULL,
    is_llm            boolean          NOT NULL,
    rubric            text             NOT NULL,
    rubric_version    text             NOT NULL,
    prompt_version    text             NOT NULL,
    prompt_hash       text             NOT NULL,
    run_id            text             NOT NULL,
    window_id         text             NOT NULL,
    group_id          text             NOT NULL,
    scores            jsonb            NOT NULL,
    prompt_tokens     integer          NOT NULL,
    completion_tokens integer          NOT NULL,
    cost_usd          double precision NOT NULL,
    characters_cut    integer          NOT NULL DEFAULT 0,
    created_at        timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (verdict_key, order_number)
);
CREATE INDEX verdicts_by_window ON hindsight.verdicts (window_id);
COMMENT ON COLUMN hindsight.verdicts.verdict_key IS
    'Hash of what was judged (trajectories, outcomes) and by whom (judge, rubric, prompt); with the order, one judgement.';
COMMENT ON COLUMN hindsight.verdicts.scores IS
    'List of {content, trajectory_id, score, explanation}; content is the hash of what the judge could see of it.';
COMMENT ON COLUMN hindsight.verdicts.characters_cut IS 'How much of the observations was left out to keep the context.';

-- Every call that was made, the failed ones too: what they cost is part of the bill.
CREATE TABLE hindsight.judge_calls (
    call_id           bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id            text             NOT NULL,
    verdict_key       text             NOT NULL,
    order_number      integer          NOT NULL,
    window_id         text             NOT NULL,
    group_id          text             NOT NULL,
    judge             text             NOT NULL,
    prompt_hash       text             NOT NULL,
    result            text             NOT NULL CHECK (result IN ('ok', 'bad_reply', 'refused', 'busy', 'failed', 'timeout')),
    fault             text             NOT NULL DEFAULT '',
    prompt_tokens     integer          NOT NULL,
    completion_tokens integer          NOT NULL,
    tokens_estimated  boolean          NOT NULL,
    cost_usd          double precision NOT NULL,
    latency_ms        double precision NOT NULL,
    made_at           timestamptz      NOT NULL DEFAULT now()
);
CREATE INDEX judge_calls_by_run ON hindsight.judge_calls (run_id);
COMMENT ON COLUMN hindsight.judge_calls.tokens_estimated IS
    'True where the endpoint did not say: our upper estimate, e.g. of a call that timed out and may be billed.';

-- Who is asking for which judgement. A lease, because a session's advisory lock does not survive a pooler in
-- transaction mode; it runs out when its host dies.
CREATE TABLE hindsight.verdict_claims (
    verdict_key  text        NOT NULL,
    order_number integer     NOT NULL,
    holder       text        NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (verdict_key, order_number)
);
CREATE INDEX verdict_claims_by_holder ON hindsight.verdict_claims (holder);
