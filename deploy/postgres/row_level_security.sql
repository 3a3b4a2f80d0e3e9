-- Authenticated agents: a role that writes its trajectories itself can write them only as its own agent.
-- Run by the owner of the game's tables (or a superuser) after roles.sql, and again after every upgrade; running it
-- twice changes nothing. Nobody but the members of hindsight_agent is restricted: the game, the trainer and every
-- other role may do what their grants say, as before, and the tables' owner is never asked.
--
-- An agent of its own:
--   CREATE ROLE agent_7 LOGIN PASSWORD '...' IN ROLE hindsight_agent;  -- and no other grant, nor BYPASSRLS
--   INSERT INTO hindsight.agent_roles (role_name, agent_id) VALUES ('agent_7', 'agent-7');
-- Its row in "User" is the owner's to add. A role may write for several agents: a row each.
-- A client can set any parameter of its session, so the agent is looked up by the role, never by a setting.

DO $$ BEGIN CREATE ROLE hindsight_agent NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;

CREATE TABLE IF NOT EXISTS hindsight.agent_roles (
    role_name name NOT NULL,
    agent_id  text NOT NULL,
    PRIMARY KEY (role_name, agent_id)
);
COMMENT ON TABLE hindsight.agent_roles IS 'Which role of Postgres writes for which agent; only the owner writes here.';

-- What the recorder inserts and reads back, and no column that is the judge's or the trainer's.
GRANT USAGE ON SCHEMA public, hindsight TO hindsight_agent;
GRANT SELECT ON hindsight.agent_roles TO hindsight_agent, hindsight_reader;  -- roles.sql gives readers all our tables
GRANT SELECT ("number", "skipped") ON hindsight.migrations TO hindsight_agent;
GRANT SELECT ("id", "trajectoryId"),
      INSERT ("id", "trajectoryId", "agentId", "startTime", "endTime", "durationMs", "windowId", "windowHours",
              "episodeId", "scenarioId", "stepsJson", "rewardComponentsJson", "metricsJson", "metadataJson",
              "totalReward", "episodeLength", "finalStatus", "finalBalance", "finalPnL", "tradesExecuted",
              "postsCreated", "isTrainingData", "isEvaluation", "updatedAt", "createdAt")
    ON public.trajectories TO hindsight_agent;
GRANT SELECT ("callId", "trajectoryId"),
      INSERT ("id", "trajectoryId", "stepId", "callId", "timestamp", "latencyMs", "model", "purpose", "actionType",
              "systemPrompt", "userPrompt", "messagesJson", "response", "reasoning", "temperature", "maxTokens",
              "topP", "promptTokens", "completionTokens", "totalTokens", "metadata", "createdAt")
    ON public.llm_call_logs TO hindsight_agent;

-- Before Postgres 15 everybody may create functions in public, which other roles' queries could then call. The
-- tables' owner keeps the right.
DO $$ BEGIN
    EXECUTE format('GRANT CREATE ON SCHEMA public TO %I', (
        SELECT tableowner FROM pg_catalog.pg_tables WHERE schemaname = 'public' AND tablename = 'trajectories'));
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- A role sees only its own agents in the table that decides, and whoever is no agent's role sees none.
ALTER TABLE hindsight.agent_roles ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON hindsight.agent_roles;
CREATE POLICY own ON hindsight.agent_roles FOR SELECT TO hindsight_agent USING (role_name = current_user);

-- The recorder looks here whether "User" is ours, to add agents it has not seen. Roles of agents find nothing: an
-- agent does not add users.
ALTER TABLE hindsight.migrations ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody ON hindsight.migrations;
DROP POLICY IF EXISTS agents ON hindsight.migrations;
CREATE POLICY everybody ON hindsight.migrations USING (true) WITH CHECK (true);
CREATE POLICY agents ON hindsight.migrations AS RESTRICTIVE TO hindsight_agent USING (false);

-- Its own rows only, and none that claims a verdict, a use in training or a place in an evaluation, even where a grant
-- would allow it. There is no grant to change or delete a row: what was said stays said.
ALTER TABLE public.trajectories ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS hindsight_everybody ON public.trajectories;
DROP POLICY IF EXISTS hindsight_agents ON public.trajectories;
CREATE POLICY hindsight_everybody ON public.trajectories USING (true) WITH CHECK (true);
CREATE POLICY hindsight_agents ON public.trajectories AS RESTRICTIVE TO hindsight_agent
    USING ("agentId" IN (SELECT agent_id FROM hindsight.agent_roles WHERE role_name = current_user))
    WITH CHECK (
        "agentId" IN (SELECT agent_id FROM hindsight.agent_roles WHERE role_name = current_user)
        AND "aiJudgeReward" IS NULL AND "aiJudgeReasoning" IS NULL AND "judgedAt" IS NULL
        AND NOT "usedInTraining" AND "trainedInBatch" IS NULL AND NOT "isEvaluation"
    );

-- Of several rows of an agent in a window the one written first counts, so an agent does not say itself when it wrote.
-- Everybody else's "createdAt" stays as written.
CREATE OR REPLACE FUNCTION hindsight.written_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW."createdAt" := pg_catalog.clock_timestamp() AT TIME ZONE 'UTC';
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER hindsight_written_now BEFORE INSERT ON public.trajectories FOR EACH ROW
    WHEN (pg_catalog.pg_has_role('hindsight_agent', 'USAGE') AND pg_catalog.current_setting('is_superuser') = 'off')
    EXECUTE FUNCTION hindsight.written_now();

-- The calls of its own trajectories: the inner query is under the policy above.
ALTER TABLE public.llm_call_logs ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS hindsight_everybody ON public.llm_call_logs;
DROP POLICY IF EXISTS hindsight_agents ON public.llm_call_logs;
CREATE POLICY hindsight_everybody ON public.llm_call_logs USING (true) WITH CHECK (true);
CREATE POLICY hindsight_agents ON public.llm_call_logs AS RESTRICTIVE TO hindsight_agent
    USING (EXISTS (SELECT FROM public.trajectories t WHERE t."trajectoryId" = llm_call_logs."trajectoryId"));
