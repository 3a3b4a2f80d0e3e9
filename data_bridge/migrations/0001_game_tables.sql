-- The game's tables as the game itself creates them: only for a database that has none of them.
-- JSON columns are text, times are naive UTC, and "updatedAt" has no default: all as the game has it.

CREATE TABLE "User" (
    "id" text NOT NULL,
    "username" text,
    "displayName" text,
    CONSTRAINT "User_pkey" PRIMARY KEY ("id")
);

CREATE TABLE "trajectories" (
    "id" text NOT NULL,
    "trajectoryId" text NOT NULL,
    "agentId" text NOT NULL,
    "startTime" timestamp(3) NOT NULL,
    "endTime" timestamp(3) NOT NULL,
    "durationMs" integer NOT NULL,
    "windowId" varchar(50),
    "windowHours" integer NOT NULL DEFAULT 1,
    "episodeId" varchar(100),
    "scenarioId" varchar(100),
    "batchId" varchar(100),
    "stepsJson" text NOT NULL,
    "rewardComponentsJson" text NOT NULL,
    "metricsJson" text NOT NULL,
    "metadataJson" text NOT NULL,
    "totalReward" double precision NOT NULL,
    "episodeLength" integer NOT NULL,
    "finalStatus" text NOT NULL,
    "finalBalance" double precision,
    "finalPnL" double precision,
    "tradesExecuted" integer,
    "postsCreated" integer,
    "aiJudgeReward" double precision,
    "aiJudgeReasoning" text,
    "judgedAt" timestamp(3),
    "isTrainingData" boolean NOT NULL DEFAULT true,
    "isEvaluation" boolean NOT NULL DEFAULT false,
    "usedInTraining" boolean NOT NULL DEFAULT false,
    "trainedInBatch" text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL,
    CONSTRAINT "trajectories_pkey" PRIMARY KEY ("id"),
    CONSTRAINT "trajectories_agentId_fkey" FOREIGN KEY ("agentId") REFERENCES "User" ("id")
        ON DELETE CASCADE ON UPDATE CASCADE
);
CREATE UNIQUE INDEX "trajectories_trajectoryId_key" ON "trajectories" ("trajectoryId");
CREATE INDEX "trajectories_agentId_startTime_idx" ON "trajectories" ("agentId", "startTime");
CREATE INDEX "trajectories_aiJudgeReward_idx" ON "trajectories" ("aiJudgeReward");
CREATE INDEX "trajectories_isTrainingData_usedInTraining_idx" ON "trajectories" ("isTrainingData", "usedInTraining");
CREATE INDEX "trajectories_scenarioId_createdAt_idx" ON "trajectories" ("scenarioId", "createdAt");
CREATE INDEX "trajectories_trainedInBatch_idx" ON "trajectories" ("trainedInBatch");
CREATE INDEX "trajectories_windowId_agentId_idx" ON "trajectories" ("windowId", "agentId");
CREATE INDEX "trajectories_windowId_idx" ON "trajectories" ("windowId");

CREATE TABLE "market_outcomes" (
    "id" text NOT NULL,
    "windowId" varchar(50) NOT NULL,
    "stockTicker" varchar(20),
    "startPrice" numeric(10, 2),
    "endPrice" numeric(10, 2),
    "changePercent" numeric(5, 2),
    "sentiment" varchar(20),
    "newsEvents" jsonb,
    "predictionMarketId" text,
    "question" text,
    "outcome" varchar(20),
    "finalProbability" numeric(5, 4),
    "volume" numeric(15, 2),
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    CONSTRAINT "market_outcomes_pkey" PRIMARY KEY ("id")
);
CREATE INDEX "market_outcomes_windowId_idx" ON "market_outcomes" ("windowId");
CREATE INDEX "market_outcomes_windowId_stockTicker_idx" ON "market_outcomes" ("windowId", "stockTicker");

CREATE TABLE "llm_call_logs" (
    "id" text NOT NULL,
    "trajectoryId" text NOT NULL,
    "stepId" text NOT NULL,
    "callId" text NOT NULL,
    "timestamp" timestamp(3) NOT NULL,
    "latencyMs" integer,
    "model" text NOT NULL,
    "purpose" text NOT NULL,
    "actionType" text,
    "systemPrompt" text NOT NULL,
    "userPrompt" text NOT NULL,
    "messagesJson" text,
    "response" text NOT NULL,
    "reasoning" text,
    "temperature" double precision NOT NULL,
    "maxTokens" integer NOT NULL,
    "topP" double precision,
    "promptTokens" integer,
    "completionTokens" integer,
    "totalTokens" integer,
    "metadata" text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    CONSTRAINT "llm_call_logs_pkey" PRIMARY KEY ("id")
);
CREATE UNIQUE INDEX "llm_call_logs_callId_key" ON "llm_call_logs" ("callId");
CREATE INDEX "llm_call_logs_trajectoryId_idx" ON "llm_call_logs" ("trajectoryId");
CREATE INDEX "llm_call_logs_timestamp_idx" ON "llm_call_logs" ("timestamp");

CREATE TABLE "training_batches" (
    "id" text NOT NULL,
    "batchId" text NOT NULL,
    "scenarioId" text,
    "baseModel" text NOT NULL,
    "modelVersion" text NOT NULL,
    "trajectoryIds" text NOT NULL,
    "rankingsJson" text,
    "rewardsJson" text NOT NULL,
    "trainingLoss" double precision,
    "policyImprovement" double precision,
    "status" text NOT NULL DEFAULT 'pending',
    "error" text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "startedAt" timestamp(3),
    "completedAt" timestamp(3),
    CONSTRAINT "training_batches_pkey" PRIMARY KEY ("id")
);
CREATE UNIQUE INDEX "training_batches_batchId_key" ON "training_batches" ("batchId");
CREATE INDEX "training_batches_status_createdAt_idx" ON "training_batches" ("status", "createdAt");

CREATE TABLE "trained_models" (
    "id" text NOT NULL,
    "modelId" text NOT NULL,
    "version" text NOT NULL,
    "baseModel" text NOT NULL,
    "trainingBatch" text,
    "status" text NOT NULL DEFAULT 'training',
    "deployedAt" timestamp(3),
    "archivedAt" timestamp(3),
    "storagePath" text NOT NULL,
    "benchmarkScore" double precision,
    "accuracy" double precision,
    "avgReward" double precision,
    "evalMetrics" jsonb,
    "wandbRunId" text,
    "wandbArtifactId" text,
    "agentsUsing" integer NOT NULL DEFAULT 0,
    "totalInferences" integer NOT NULL DEFAULT 0,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL,
    CONSTRAINT "trained_models_pkey" PRIMARY KEY ("id")
);
CREATE UNIQUE INDEX "trained_models_modelId_key" ON "trained_models" ("modelId");
CREATE INDEX "trained_models_status_idx" ON "trained_models" ("status");
CREATE INDEX "trained_models_version_idx" ON "trained_models" ("version");
CREATE INDEX "trained_models_deployedAt_idx" ON "trained_models" ("deployedAt");

CREATE TABLE "reward_judgments" (
    "id" text NOT NULL,
    "trajectoryId" text NOT NULL,
    "judgeModel" text NOT NULL,
    "judgeVersion" text NOT NULL,
    "overallScore" double precision NOT NULL,
    "componentScoresJson" text,
    "rank" integer,
    "normalizedScore" double precision,
    "groupId" text,
    "reasoning" text NOT NULL,
    "strengthsJson" text,
    "weaknessesJson" text,
    "criteriaJson" text NOT NULL,
    "judgedAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    CONSTRAINT "reward_judgments_pkey" PRIMARY KEY ("id"),
    CONSTRAINT "reward_judgments_trajectoryId_fkey" FOREIGN KEY ("trajectoryId")
        REFERENCES "trajectories" ("trajectoryId") ON DELETE CASCADE ON UPDATE CASCADE
);
CREATE UNIQUE INDEX "reward_judgments_trajectoryId_key" ON "reward_judgments" ("trajectoryId");
CREATE INDEX "reward_judgments_overallScore_idx" ON "reward_judgments" ("overallScore");
CREATE INDEX "reward_judgments_groupId_rank_idx" ON "reward_judgments" ("groupId", "rank");
