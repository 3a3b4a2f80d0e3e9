-- What each command may do in the game's database, as roles to hand out. Run by the owner of the game's tables (or a
-- superuser) after scripts/run_migrations.py, and again after every upgrade; running it twice changes nothing.
--
-- A login gets one of them:  CREATE ROLE trains LOGIN PASSWORD '...' IN ROLE hindsight_trainer;
--
--   hindsight_reader       check_windows, lineage, report, promote --list, serve, train_mmo --dry-run, traces export
--   hindsight_judge        also judge_windows and certify_judge: stores verdicts in our schema, nothing in the game's
--   hindsight_judge_writer also judge_windows --write-back: the judge's columns of the game
--   hindsight_trainer      also train_mmo, evaluate, promote, schedule_training, lessons, prompts
--   hindsight_console      also console and calibrate_advice: commands, ingest keys, advice, the audit log
--   hindsight_ingest       beside hindsight_console, for a console to which agents and the game send rows:
--                          CREATE ROLE console LOGIN PASSWORD '...' IN ROLE hindsight_console, hindsight_ingest;
--
-- run_migrations, traces import and spawn_test_agents create or fill tables: they are the owner's.
-- The game's tables are looked for in the schema public; if yours are elsewhere, change it here.

DO $$ BEGIN CREATE ROLE hindsight_reader NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE hindsight_judge NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE hindsight_judge_writer NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE hindsight_trainer NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE hindsight_console NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE hindsight_ingest NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT hindsight_reader TO hindsight_judge;
GRANT hindsight_judge TO hindsight_judge_writer;
GRANT hindsight_judge_writer TO hindsight_trainer;
GRANT hindsight_trainer TO hindsight_console;

-- Reading. Of the game's users nothing but the agents' names.
GRANT USAGE ON SCHEMA public, hindsight TO hindsight_reader;
GRANT SELECT ON public.trajectories, public.market_outcomes TO hindsight_reader;
GRANT SELECT ("id", "username", "displayName") ON public."User" TO hindsight_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA hindsight TO hindsight_reader;

-- Judging. Identity columns need no grant on their sequences.
GRANT INSERT ON hindsight.verdicts, hindsight.judge_calls, hindsight.order_decisions, hindsight.certificates
    TO hindsight_judge;
GRANT INSERT, UPDATE, DELETE ON hindsight.verdict_claims, hindsight.unit_jobs TO hindsight_judge;
GRANT INSERT, UPDATE ON hindsight.units, hindsight.unit_workers TO hindsight_judge;

-- Writing the judge's scores into the game's own columns.
GRANT UPDATE ("aiJudgeReward", "aiJudgeReasoning", "judgedAt", "updatedAt")
    ON public.trajectories TO hindsight_judge_writer;
GRANT SELECT ("trajectoryId", "judgeModel", "judgeVersion", "overallScore", "rank", "normalizedScore", "groupId",
              "reasoning", "criteriaJson", "judgedAt"),
      INSERT ("id", "trajectoryId", "judgeModel", "judgeVersion", "overallScore", "rank", "normalizedScore", "groupId",
              "reasoning", "criteriaJson", "judgedAt"),
      UPDATE ("judgeModel", "judgeVersion", "overallScore", "rank", "normalizedScore", "groupId", "reasoning",
              "criteriaJson", "judgedAt", "componentScoresJson", "strengthsJson", "weaknessesJson")
    ON public.reward_judgments TO hindsight_judge_writer;

-- Training and promoting: use and batches of the game's rows, and which model its agents take.
GRANT UPDATE ("usedInTraining", "trainedInBatch") ON public.trajectories TO hindsight_trainer;
GRANT SELECT ("batchId"),
      INSERT ("id", "batchId", "baseModel", "modelVersion", "trajectoryIds", "rewardsJson", "trainingLoss", "status",
              "createdAt", "startedAt", "completedAt"),
      UPDATE ("status", "error")
    ON public.training_batches TO hindsight_trainer;
GRANT SELECT ("modelId", "status", "storagePath", "benchmarkScore", "evalMetrics"),
      INSERT ("id", "modelId", "version", "baseModel", "trainingBatch", "status", "storagePath", "benchmarkScore",
              "avgReward", "evalMetrics", "wandbArtifactId", "createdAt", "updatedAt"),
      UPDATE ("status", "storagePath", "benchmarkScore", "evalMetrics", "deployedAt", "archivedAt", "updatedAt")
    ON public.trained_models TO hindsight_trainer;

-- The ledger.
GRANT INSERT, UPDATE ON hindsight.runs, hindsight.windows, hindsight.batches, hindsight.batch_trajectories,
    hindsight.evaluations, hindsight.promotions, hindsight.periods, hindsight.observed TO hindsight_trainer;
GRANT INSERT, UPDATE, DELETE ON hindsight.model_locks, hindsight.exclusions TO hindsight_trainer;
GRANT INSERT, DELETE ON hindsight.checkpoints, hindsight.replays TO hindsight_trainer;
GRANT INSERT, DELETE ON hindsight.carried TO hindsight_trainer;
GRANT INSERT ON hindsight.canary_agents, hindsight.rewards, hindsight.beginnings, hindsight.curriculum_rounds,
    hindsight.curriculum_draws TO hindsight_trainer;
GRANT INSERT ON hindsight.events TO hindsight_trainer;
GRANT INSERT, UPDATE, DELETE ON hindsight.lessons TO hindsight_trainer;
GRANT INSERT ON hindsight.lesson_sources, hindsight.distilled, hindsight.consultations, hindsight.admission_lessons
    TO hindsight_trainer;
GRANT INSERT, UPDATE ON hindsight.lesson_admissions TO hindsight_trainer;
GRANT INSERT, UPDATE ON hindsight.injections TO hindsight_trainer;
GRANT INSERT, UPDATE ON hindsight.prompts, hindsight.policy_checkpoints, hindsight.policy_experience TO hindsight_trainer;
GRANT INSERT ON hindsight.prompt_versions, hindsight.policy_names TO hindsight_trainer;
GRANT UPDATE ON hindsight.commands TO hindsight_trainer;
GRANT INSERT, UPDATE, DELETE ON hindsight.hosts TO hindsight_trainer;

-- The console: what it is asked to do, by whom, and what it forgets.
GRANT UPDATE, DELETE ON hindsight.events TO hindsight_console;
GRANT INSERT ON hindsight.commands TO hindsight_console;
GRANT INSERT, UPDATE, DELETE ON hindsight.audit, hindsight.ingest_keys TO hindsight_console;
GRANT UPDATE, DELETE ON hindsight.verdicts TO hindsight_console;
GRANT DELETE ON hindsight.batch_trajectories, hindsight.rewards, hindsight.canary_agents, hindsight.observed
    TO hindsight_console;
GRANT INSERT, DELETE ON hindsight.forgotten TO hindsight_console;
GRANT INSERT, UPDATE, DELETE ON hindsight.advice, hindsight.advice_labels TO hindsight_console;
GRANT INSERT ON hindsight.advice_calibrations TO hindsight_console;
GRANT DELETE ON hindsight.lesson_sources, hindsight.injections, hindsight.lesson_admissions TO hindsight_console;

-- Rows that agents and the game send through the console: what they may say, and no column that is the judge's or the
-- trainer's. A row that is stored cannot be changed.
GRANT USAGE ON SCHEMA public TO hindsight_ingest;
GRANT SELECT ("id", "trajectoryId"),
      INSERT ("id", "trajectoryId", "agentId", "startTime", "endTime", "durationMs", "windowId", "windowHours",
              "episodeId", "scenarioId", "stepsJson", "rewardComponentsJson", "metricsJson", "metadataJson",
              "totalReward", "episodeLength", "finalStatus", "finalBalance", "finalPnL", "tradesExecuted",
              "postsCreated", "isTrainingData", "isEvaluation", "updatedAt", "createdAt")
    ON public.trajectories TO hindsight_ingest;
GRANT SELECT, INSERT,
      UPDATE ("startPrice", "endPrice", "changePercent", "sentiment", "newsEvents", "question", "outcome",
              "finalProbability", "volume")
    ON public.market_outcomes TO hindsight_ingest;
GRANT USAGE ON SCHEMA hindsight TO hindsight_ingest;
GRANT SELECT, INSERT, UPDATE ON hindsight.window_facts TO hindsight_ingest;
-- Agents are added only where the game's tables are ours; otherwise they are the game's to add.
DO $$ BEGIN
    IF (SELECT NOT skipped FROM hindsight.migrations WHERE number = 1) THEN
        GRANT INSERT ("id", "username", "displayName") ON public."User" TO hindsight_ingest;
    END IF;
END $$;
