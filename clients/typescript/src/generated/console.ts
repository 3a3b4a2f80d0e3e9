// Made by `npm run generate` from the server's OpenAPI document: do not edit.

export interface paths {
    "/advice": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** What the promoted release would do, or an abstention */
        post: operations["ask_advice"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/advice/{advice_id}/outcome": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Say what came of a proposal */
        post: operations["tell_outcome"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/agents/{agent_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Forget everything of one agent */
        delete: operations["delete_agent"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What was done, by whom and why */
        get: operations["get_audit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What happens, as server-sent events */
        get: operations["get_events"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ingest/facts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Send what really happened in a window */
        post: operations["ingest_facts"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ingest/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Keys for ingest, without the keys */
        get: operations["list_keys"];
        put?: never;
        /** Make a key for an agent, a team or the game */
        post: operations["make_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ingest/keys/{key_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** End a key for ingest */
        delete: operations["revoke_key"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ingest/trajectories": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Send trajectories, stamped by the key with their agent and by their start with their window */
        post: operations["ingest_trajectories"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/memory/consolidate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Merge what says the same, and forget what is worth least */
        post: operations["consolidate_memories"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/memory/gate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lessons from outside that were put to the gate, and what came of it */
        get: operations["get_admissions"];
        put?: never;
        /** Have lessons from outside compared with and without, and shown if they pass the gate */
        post: operations["gate_memories"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/memory/policy": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Which lessons an agent is to be shown, by the release that it was given */
        get: operations["policy_of_agent"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/memory/retrieve": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Look up lessons for a decision, as of its time */
        post: operations["retrieve_memories"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/memory/store": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Keep a lesson from outside */
        post: operations["store_memory"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Figures for Prometheus */
        get: operations["get_metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/patterns": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What was wrong with rows, by week */
        get: operations["get_patterns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Prompts, the latest first */
        get: operations["get_prompts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/{prompt_id}/promote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a prompt to all agents of its role, if the gate's evidence allows it */
        post: operations["promote_prompt"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/current": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The prompt that an agent is to use, by the release that it was given */
        get: operations["current_prompt"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/get_distribution": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** How likely each mutation is for a prompt */
        post: operations["get_distribution"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/load": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Go on from a saved policy, as a new version */
        post: operations["load_policy"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/save": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Save the policy under a name */
        post: operations["save_policy"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/select_action": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Choose a mutation for a prompt */
        post: operations["select_action"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/stats": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The policy's version, experience and last losses */
        get: operations["policy_stats"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/store_experience": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Keep what a mutation was worth */
        post: operations["store_experience"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/prompts/policy/update": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Learn from the experience, once the buffer is full */
        post: operations["update_policy"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/releases": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Checkpoints with state and evidence */
        get: operations["get_releases"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/releases/{release}/canary": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Start, settle or take back a canary */
        post: operations["canary_release"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/releases/{release}/promote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a checkpoint to all agents, if the gate's evidence allows it */
        post: operations["promote_release"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/releases/{release}/rollback": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Let all agents use this earlier checkpoint; 0 is the base model */
        post: operations["roll_back_release"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/rewards/calculate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have one trajectory or result judged now */
        post: operations["calculate_reward"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/rewards/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Rewards that were trained, the latest first */
        get: operations["get_reward_history"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/runs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Runs, the latest first */
        get: operations["get_runs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/runs/{run_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One run */
        get: operations["get_run"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/runs/{run_id}/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The steps of a run */
        get: operations["get_run_metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/training/start": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Ask any idle host to train a model */
        post: operations["start_training"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/training/status": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What is happening to a model now */
        get: operations["training_status"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/training/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Ask whoever trains a model to stop after the step in hand */
        post: operations["stop_training"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/windows": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Windows that runs met, the newest first */
        get: operations["get_windows"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * AdmissionRow
         * @description An admission for people.
         */
        AdmissionRow: {
            /** Admission Id */
            admission_id: string;
            /** Agent Id */
            agent_id: string | null;
            /**
             * Asked At
             * Format: date-time
             */
            asked_at: string;
            /** Asked By */
            asked_by: string;
            /** Lessons */
            lessons: number;
            /** Outcome */
            outcome: string;
            /** Shown */
            shown: number;
            /** State */
            state: string;
            /** Tried At */
            tried_at: string | null;
        };
        /**
         * AskedMessage
         * @description One message as the agent's own model would receive it.
         */
        AskedMessage: {
            /** Content */
            content: string;
            /**
             * Role
             * @enum {string}
             */
            role: "system" | "user" | "assistant";
        };
        /** AuditRow */
        AuditRow: {
            /** Address */
            address: string;
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Audit Id */
            audit_id: number;
            /** Deed */
            deed: string;
            /** Outcome */
            outcome: string;
            /** Reason */
            reason: string;
            /** Target */
            target: string;
            /** Who */
            who: string;
        };
        /** BufferStats */
        BufferStats: {
            /** Needed */
            needed: number;
            /** Size */
            size: number;
            /** Waiting */
            waiting: number;
        };
        /** Component */
        Component: {
            /** Name */
            name: string;
            /** Value */
            value: number;
        };
        /**
         * EmbeddedSelect
         * @description A prompt to choose a mutation for, by its embedding.
         */
        EmbeddedSelect: {
            /**
             * Action Mask
             * @description Which actions are allowed; unset: all.
             * @default null
             */
            action_mask?: [
                true,
                boolean,
                boolean,
                boolean,
                boolean,
                boolean
            ] | null;
            /**
             * Deterministic
             * @description The most likely action instead of a drawn one.
             * @default false
             */
            deterministic?: boolean;
            /**
             * Embedding
             * @description 1536 numbers.
             */
            embedding: number[];
            /**
             * Seed
             * @description To draw the same action again.
             * @default null
             */
            seed?: number | null;
        };
        /**
         * EmbeddedState
         * @description A prompt by its embedding, and which mutations apply to it.
         */
        EmbeddedState: {
            /**
             * Action Mask
             * @description Which actions are allowed; unset: all.
             * @default null
             */
            action_mask?: [
                true,
                boolean,
                boolean,
                boolean,
                boolean,
                boolean
            ] | null;
            /**
             * Embedding
             * @description 1536 numbers.
             */
            embedding: number[];
        };
        /**
         * ExperienceStats
         * @description received = trained + waiting + stale.
         */
        ExperienceStats: {
            /** Received */
            received: number;
            /** Stale */
            stale: number;
            /** Trained */
            trained: number;
            /** Waiting */
            waiting: number;
        };
        /**
         * ForgottenRows
         * @description How many rows of each kind were deleted or lost the agent.
         */
        ForgottenRows: {
            /** Advice */
            advice: number;
            /** Batches */
            batches: number;
            /** Canaries */
            canaries: number;
            /** Evaluations */
            evaluations: number;
            /** Exclusions */
            exclusions: number;
            /** Ingest Keys */
            ingest_keys: number;
            /** Lessons */
            lessons: number;
            /** Observed */
            observed: number;
            /** Rewards */
            rewards: number;
            /** Verdicts */
            verdicts: number;
        };
        /**
         * GivenBody
         * @description A row that the log does not have, judged beside the rows of its window; alone if the log has none of them.
         */
        GivenBody: {
            /**
             * Max Cost
             * @description US dollars, for this request.
             * @default null
             */
            max_cost?: number | null;
            /**
             * Rubric
             * @description A built-in rubric.
             * @default null
             */
            rubric?: string | null;
            trajectory: components["schemas"]["GivenRow"];
        };
        /**
         * GivenRow
         * @description A row of ``trajectories`` in the game's shape, which is judged and not stored.
         */
        GivenRow: {
            /** Agentid */
            agentId: string;
            /**
             * Endtime
             * Format: date-time
             */
            endTime: string;
            /**
             * Finalbalance
             * @default null
             */
            finalBalance?: number | null;
            /**
             * Finalpnl
             * @default null
             */
            finalPnL?: number | null;
            /**
             * Isevaluation
             * @default false
             */
            isEvaluation?: boolean;
            /**
             * Istrainingdata
             * @description False: stored, and never trained on.
             * @default true
             */
            isTrainingData?: boolean;
            /**
             * Metadatajson
             * @default {}
             */
            metadataJson?: string;
            /**
             * Scenarioid
             * @default null
             */
            scenarioId?: string | null;
            /**
             * Starttime
             * Format: date-time
             * @description Its hour is the window, which must still be open.
             */
            startTime: string;
            /**
             * Stepsjson
             * @description As the game writes it.
             */
            stepsJson: string;
            /**
             * Totalreward
             * @default 0
             */
            totalReward?: number;
            /** Trajectoryid */
            trajectoryId: string;
        };
        /**
         * IngestKey
         * @description A key, without the key.
         */
        IngestKey: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Key Id */
            key_id: string;
            /** Kind */
            kind: string;
            /** Owner */
            owner: string;
            /** Revoked At */
            revoked_at: string | null;
        };
        /**
         * LessonKind
         * @enum {string}
         */
        LessonKind: "episodic" | "semantic" | "procedural";
        /**
         * LoggedBody
         * @description A trajectory of the log, judged beside the others of its window.
         */
        LoggedBody: {
            /**
             * Max Cost
             * @description US dollars, for this request.
             * @default null
             */
            max_cost?: number | null;
            /**
             * Rubric
             * @description A built-in rubric.
             * @default null
             */
            rubric?: string | null;
            /** Trajectory Id */
            trajectory_id: string;
        };
        /** MemoryItem */
        MemoryItem: {
            /** Content */
            content: string;
            /** Contradictions */
            contradictions: number;
            /** Cosine */
            cosine: number;
            /** Id */
            id: string;
            /** Importance */
            importance: number;
            /**
             * Known At
             * Format: date-time
             */
            known_at: string;
            /** Memory Type */
            memory_type: string;
            /** Score */
            score: number;
            /** Sources */
            sources: components["schemas"]["MemorySource"][];
            /** Support */
            support: number;
            /** Title */
            title: string;
            /** Trust */
            trust: string;
            /** Usefulness */
            usefulness: number | null;
            /** Uses */
            uses: number;
            /** Words */
            words: number;
        };
        /** MemorySource */
        MemorySource: {
            /** Trajectory Id */
            trajectory_id: string;
            /** Verdict */
            verdict: string;
            /** Window Id */
            window_id: string;
        };
        /**
         * MessagesBody
         * @description The conversation at which the agent decides.
         */
        MessagesBody: {
            /**
             * Agent Id
             * @description Who decides; with an agent's own key only itself.
             */
            agent_id: string;
            /** Messages */
            messages: components["schemas"]["AskedMessage"][];
            /**
             * Window Id
             * @description The hour that it is about: the game's to say; unset: the current one.
             * @default null
             */
            window_id?: string | null;
        };
        /**
         * ObservationBody
         * @description What the agent sees, as one text.
         */
        ObservationBody: {
            /**
             * Agent Id
             * @description Who decides; with an agent's own key only itself.
             */
            agent_id: string;
            /** Observation */
            observation: string;
            /**
             * Window Id
             * @description The hour that it is about: the game's to say; unset: the current one.
             * @default null
             */
            window_id?: string | null;
        };
        /**
         * PatternRow
         * @description How often one thing went wrong in one week.
         */
        PatternRow: {
            /** Agents */
            agents: number;
            /** Count */
            count: number;
            /** Example */
            example: string;
            /** Pattern */
            pattern: string;
            /**
             * Week
             * Format: date
             */
            week: string;
        };
        /**
         * PolicyLosses
         * @description What an update did.
         */
        PolicyLosses: {
            /** Approx Kl */
            approx_kl: number;
            /** Clip Share */
            clip_share: number;
            /** Entropy */
            entropy: number;
            /** Experience */
            experience: number;
            /** Explained Variance */
            explained_variance: number | null;
            /** Learning Rate */
            learning_rate: number;
            /** Policy Loss */
            policy_loss: number;
            /** Value Loss */
            value_loss: number;
            /** Version */
            version: number;
        };
        /**
         * Problem
         * @description The one shape of errors.
         */
        Problem: {
            error: components["schemas"]["ProblemDetail"];
        };
        /**
         * ProblemDetail
         * @description What went wrong, for machines by ``code``, for people by ``message``.
         */
        ProblemDetail: {
            /**
             * Code
             * @description One word for the kind of error.
             * @example conflict
             */
            code: string;
            /**
             * Field
             * @description The part of the request that is wrong.
             * @default null
             */
            field?: string | null;
            /**
             * Message
             * @description One sentence that says what to do.
             */
            message: string;
        };
        /**
         * ProgressFacts
         * @description How far a run is, as its process last said; all unknown for a run of an earlier version.
         */
        ProgressFacts: {
            /**
             * Cost Usd
             * @default 0
             */
            cost_usd?: number;
            /**
             * Groups
             * @default 0
             */
            groups?: number;
            /**
             * Groups Cached
             * @default 0
             */
            groups_cached?: number;
            /**
             * Groups Failed
             * @default 0
             */
            groups_failed?: number;
            /**
             * Groups Judged
             * @default 0
             */
            groups_judged?: number;
            /**
             * Max Cost
             * @default null
             */
            max_cost?: number | null;
            /**
             * Seconds Left
             * @default null
             */
            seconds_left?: number | null;
            /**
             * Share
             * @default 0
             */
            share?: number;
            /**
             * Stage
             * @default
             */
            stage?: string;
            /**
             * Step
             * @default 0
             */
            step?: number;
            /**
             * Steps
             * @default 0
             */
            steps?: number;
            /**
             * Tokens Per Second
             * @default 0
             */
            tokens_per_second?: number;
            /**
             * Unit
             * @default
             */
            unit?: string;
            /**
             * Windows
             * @default 0
             */
            windows?: number;
            /**
             * Windows Read
             * @default 0
             */
            windows_read?: number;
        };
        /**
         * PromotionEntry
         * @description One deed on releases, in the order in which they happened.
         */
        PromotionEntry: {
            /** Canary Share */
            canary_share: number | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Ended At */
            ended_at: string | null;
            /** Forced */
            forced: boolean;
            /** Kind */
            kind: string;
            /** Name */
            name: string;
            /** Outcome */
            outcome: string | null;
            /** Promotion Id */
            promotion_id: number;
            /** Reason */
            reason: string;
            /** Serving Since */
            serving_since: string | null;
            /** State */
            state: string;
            /** Step */
            step: number;
        };
        /** PromptEntry */
        PromptEntry: {
            /** Gain */
            gain: number | null;
            /**
             * Made At
             * Format: date-time
             */
            made_at: string;
            /** Made By */
            made_by: string;
            /** Mutation */
            mutation: string;
            /** Parent */
            parent: string | null;
            /** Prompt Id */
            prompt_id: string;
            /** Role */
            role: string;
            /** Text */
            text: string;
        };
        /** PromptTurns */
        PromptTurns: {
            /** Assistant */
            assistant: string;
            /** User */
            user: string;
        };
        /**
         * ReleaseEntry
         * @description A checkpoint, with its state and evidence.
         */
        ReleaseEntry: {
            /** Gain */
            gain: number | null;
            /** Gain High */
            gain_high: number | null;
            /** Gain Low */
            gain_low: number | null;
            /** Mean Score */
            mean_score: number | null;
            /** Name */
            name: string;
            /** Parent */
            parent: string;
            /** Reason */
            reason: string;
            /** Run Id */
            run_id: string;
            /** State */
            state: string;
            /** Step */
            step: number;
            /**
             * Trained At
             * Format: date-time
             */
            trained_at: string;
            /** Windows */
            windows: number;
        };
        /**
         * ResultBody
         * @description A task's result, judged alone.
         */
        ResultBody: {
            /**
             * Max Cost
             * @description US dollars, for this request.
             * @default null
             */
            max_cost?: number | null;
            /**
             * Rubric
             * @description A built-in rubric.
             * @default null
             */
            rubric?: string | null;
            task_result: components["schemas"]["TaskResult"];
        };
        /** RewardEntry */
        RewardEntry: {
            /** Agent Id */
            agent_id: string;
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Components */
            components: components["schemas"]["Component"][];
            /** Model */
            model: string;
            /** Role */
            role: string | null;
            /** Run Id */
            run_id: string;
            /** Score */
            score: number;
            /** Step */
            step: number;
            /** Trajectory Id */
            trajectory_id: string;
            /** Window Id */
            window_id: string;
        };
        /**
         * RunRow
         * @description One run in a list.
         */
        RunRow: {
            /** Attempts */
            attempts: number;
            /** Backend */
            backend: string;
            /** Cost Usd */
            cost_usd: number;
            /** Error */
            error: string | null;
            /** Finished At */
            finished_at: string | null;
            /** Host */
            host: string;
            /** Left Out */
            left_out: number;
            /** Model */
            model: string;
            /** Release */
            release: string | null;
            /** Ruling */
            ruling: string | null;
            /** Run Id */
            run_id: string;
            /**
             * Started At
             * Format: date-time
             */
            started_at: string;
            /** State */
            state: string;
            /** Steps */
            steps: number;
            /** Trajectories */
            trajectories: number;
        };
        /**
         * SentFact
         * @description Anything else that is known afterwards: about a quest, a ticket, an agent.
         */
        SentFact: {
            /**
             * After
             * @default null
             */
            after?: number | null;
            /**
             * At
             * @default null
             */
            at?: string | null;
            /**
             * Before
             * @default null
             */
            before?: number | null;
            /** Kind */
            kind: string;
            /** Subject */
            subject: string;
            /**
             * Text
             * @default null
             */
            text?: string | null;
            /**
             * Visible
             * @description Whether the agents could see it when they decided.
             * @default false
             */
            visible?: boolean;
        };
        /** SentNews */
        SentNews: {
            /** Headline */
            headline: string;
            /**
             * Sentiment
             * @default null
             */
            sentiment?: string | null;
            /**
             * Timestamp
             * @default null
             */
            timestamp?: string | null;
        };
        /** SentPrediction */
        SentPrediction: {
            /**
             * Finalprobability
             * @default null
             */
            finalProbability?: number | null;
            /** Marketid */
            marketId: string;
            /**
             * Outcome
             * @default null
             */
            outcome?: string | null;
            /**
             * Question
             * @default null
             */
            question?: string | null;
            /**
             * Volume
             * @default null
             */
            volume?: number | null;
        };
        /**
         * SentRow
         * @description A row of ``trajectories``: the columns that are the agent's to say. Its key says whose it is.
         */
        SentRow: {
            /**
             * Agentid
             * @description With a team's key: which of its agents.
             * @default null
             */
            agentId?: string | null;
            /**
             * Endtime
             * Format: date-time
             */
            endTime: string;
            /**
             * Finalbalance
             * @default null
             */
            finalBalance?: number | null;
            /**
             * Finalpnl
             * @default null
             */
            finalPnL?: number | null;
            /**
             * Isevaluation
             * @default false
             */
            isEvaluation?: boolean;
            /**
             * Istrainingdata
             * @description False: stored, and never trained on.
             * @default true
             */
            isTrainingData?: boolean;
            /**
             * Metadatajson
             * @default {}
             */
            metadataJson?: string;
            /**
             * Scenarioid
             * @default null
             */
            scenarioId?: string | null;
            /**
             * Starttime
             * Format: date-time
             * @description Its hour is the window, which must still be open.
             */
            startTime: string;
            /**
             * Stepsjson
             * @description As the game writes it.
             */
            stepsJson: string;
            /**
             * Totalreward
             * @default 0
             */
            totalReward?: number;
            /** Trajectoryid */
            trajectoryId: string;
        };
        /** SentStock */
        SentStock: {
            /**
             * Changepercent
             * @default null
             */
            changePercent?: number | null;
            /**
             * Endprice
             * @default null
             */
            endPrice?: number | null;
            /** News */
            news?: components["schemas"]["SentNews"][];
            /**
             * Sentiment
             * @default null
             */
            sentiment?: string | null;
            /**
             * Startprice
             * @default null
             */
            startPrice?: number | null;
            /** Ticker */
            ticker: string;
        };
        /**
         * StartBackend
         * @description The table [backend] of run.toml.
         */
        StartBackend: {
            /**
             * Backend
             * @description Where to train; auto: serverless with a W&B key, local with a GPU, otherwise the CPU.
             * @default null
             */
            backend?: ("auto" | "cpu" | "local" | "serverless") | null;
            /**
             * Remote Deadline
             * @description Maximum time to follow a remote training job.
             * @default null
             */
            remote_deadline?: string | null;
            /**
             * Tracking
             * @description Run tracking: by wandb (auto is online with a key, else off), or as TensorBoard files in the run's folder.
             * @default null
             */
            tracking?: ("auto" | "online" | "offline" | "tensorboard" | "off") | null;
        };
        /**
         * StartChance
         * @description The table [chance] of run.toml.
         */
        StartChance: {
            /**
             * Seed
             * @description Seed of everything random.
             * @default null
             */
            seed?: number | null;
        };
        /**
         * StartEmbedding
         * @description The table [embedding] of run.toml.
         */
        StartEmbedding: {
            /**
             * Embedding Base Url
             * @description Address of that endpoint; unset: OpenAI's.
             * @default null
             */
            embedding_base_url?: string | null;
            /**
             * Embedding Dimensions
             * @description Length of its vectors; unset: as its first answer has it.
             * @default null
             */
            embedding_dimensions?: number | null;
            /**
             * Embedding Model
             * @description Model of an OpenAI-compatible embeddings endpoint; unset: the embedded all-MiniLM-L6-v2.
             * @default null
             */
            embedding_model?: string | null;
        };
        /**
         * StartEvaluation
         * @description The table [evaluation] of run.toml.
         */
        StartEvaluation: {
            /**
             * Eval Judge
             * @description Judge of the evaluation: outcome, reward, llm, or auto (another than the training judge when there are two).
             * @default null
             */
            eval_judge?: ("auto" | "outcome" | "reward" | "llm") | null;
            /**
             * Eval Judge Model
             * @description Model of the evaluation judge.
             * @default null
             */
            eval_judge_model?: string | null;
            /**
             * Eval Lookback
             * @description How far back evaluation windows are read.
             * @default null
             */
            eval_lookback?: string | null;
            /**
             * Eval Points
             * @description Maximum number of distinct decision points per evaluation window.
             * @default null
             */
            eval_points?: number | null;
            /**
             * Eval Questions
             * @description Simulated worlds only: questions with unseen words in the reading test; 0: no reading test.
             * @default null
             */
            eval_questions?: number | null;
            /**
             * Eval Samples
             * @description Replies of each policy at each decision point.
             * @default null
             */
            eval_samples?: number | null;
        };
        /**
         * StartGate
         * @description The table [gate] of run.toml.
         */
        StartGate: {
            /**
             * Max Error Rate
             * @description Guard: maximum error rate of a promoted model.
             * @default null
             */
            max_error_rate?: number | null;
            /**
             * Max Kl
             * @description Guard: maximum mean KL per token from the base model.
             * @default null
             */
            max_kl?: number | null;
            /**
             * Max Length Ratio
             * @description Guard: maximum reply length as a multiple of the incumbent's.
             * @default null
             */
            max_length_ratio?: number | null;
            /**
             * Max Safety Blocks
             * @description Guard: maximum share of actions stopped by the safety guard.
             * @default null
             */
            max_safety_blocks?: number | null;
            /**
             * Min Gain
             * @description Promote only if the interval of the score gain lies above this.
             * @default null
             */
            min_gain?: number | null;
        };
        /**
         * StartGroups
         * @description The table [groups] of run.toml.
         */
        StartGroups: {
            /**
             * Dropout
             * @description Fix the dropout rate instead of computing it.
             * @default null
             */
            dropout?: number | null;
            /**
             * Grouping
             * @description Who is compared: all agents of the window, or those with the same role and a similar balance.
             * @default null
             */
            grouping?: ("window" | "matched") | null;
            /**
             * Match Ratio
             * @description `matched` grouping: maximum ratio of the largest to the smallest starting balance in a group.
             * @default null
             */
            match_ratio?: number | null;
            /**
             * Max Dropout
             * @description Maximum share that automatic dropout may leave out.
             * @default null
             */
            max_dropout?: number | null;
            /**
             * Max Group
             * @description Maximum number of trajectories in a group.
             * @default null
             */
            max_group?: number | null;
            /**
             * Min Spread
             * @description Minimum difference between a group's best and worst score; below it the group has no signal.
             * @default null
             */
            min_spread?: number | null;
            /**
             * Select
             * @description `max-variance N`: after judging, keep the N most telling trajectories of each group.
             * @default null
             */
            select?: string | null;
            /**
             * Target Trajectories
             * @description Number of trajectories that dropout thins a run towards.
             * @default null
             */
            target_trajectories?: number | null;
        };
        /**
         * StartJudge
         * @description The table [judge] of run.toml.
         */
        StartJudge: {
            /**
             * Judge
             * @description `outcome`, `reward` (offline, not an LLM), or `llm`; auto takes the LLM when --judge-model is set.
             * @default null
             */
            judge?: string | null;
            /**
             * Judge Attempts
             * @description Attempts per call when the endpoint is busy or failing.
             * @default null
             */
            judge_attempts?: number | null;
            /**
             * Judge Concurrency
             * @description Maximum number of judge calls in flight.
             * @default null
             */
            judge_concurrency?: number | null;
            /**
             * Judge Context
             * @description Maximum tokens of one judge prompt.
             * @default null
             */
            judge_context?: number | null;
            /**
             * Judge Model
             * @description Model that judges, at any OpenAI-compatible endpoint.
             * @default null
             */
            judge_model?: string | null;
            /**
             * Judge Order Rule
             * @description When a group is judged in more than one order: where that could change its advantages (and a random tenth, to measure it), or always. adaptive also leaves out, unasked, groups whose members all did the same.
             * @default null
             */
            judge_order_rule?: ("adaptive" | "all") | null;
            /**
             * Judge Orders
             * @description Maximum number of different orders in which a group is judged.
             * @default null
             */
            judge_orders?: number | null;
            /**
             * Judge Passes
             * @description 2: the judge scores decisions without the outcome, then with it; luck, the difference, is not trained. Twice the calls.
             * @default null
             */
            judge_passes?: number | null;
            /**
             * Judge Reply Tokens
             * @description Maximum tokens of one judge reply, thinking included; --max-cost reserves this much.
             * @default null
             */
            judge_reply_tokens?: number | null;
            /**
             * Judge Timeout
             * @description Maximum time for one judge call.
             * @default null
             */
            judge_timeout?: string | null;
            /**
             * Max Cost
             * @description Ceiling of the judge's cost in US dollars.
             * @default null
             */
            max_cost?: number | null;
            /**
             * Max Judge Failures
             * @description Maximum share of groups that the judge may fail on before the run stops with exit 4.
             * @default null
             */
            max_judge_failures?: number | null;
            /**
             * Price
             * @description Price of the judge as INPUT/OUTPUT or INPUT/OUTPUT/CACHED dollars per million tokens, e.g. 0.25/2/0.025; overrides the table.
             * @default null
             */
            price?: string | null;
            /**
             * Purposes
             * @description Which LLM calls are judged, trained and evaluated, by purpose, comma separated.
             * @default null
             */
            purposes?: string[] | null;
            /**
             * Rubric
             * @description Built-in rubric, or a file; unset: the world's.
             * @default null
             */
            rubric?: string | null;
            /**
             * Step Credit
             * @description Credit each decision by itself: the judge scores the decisions as well as the whole, in the same call. Its prompt is another one then, so verdicts from before are not used.
             * @default null
             */
            step_credit?: boolean | null;
        };
        /**
         * StartLessons
         * @description The table [lessons] of run.toml.
         */
        StartLessons: {
            /**
             * Distil
             * @description Keep lessons of judged groups: by template, free and offline; or in the judge's words, one more call a group.
             * @default null
             */
            distil?: ("off" | "template" | "judge") | null;
            /**
             * Game
             * @description Name of the game: lessons of one are never shown in another.
             * @default null
             */
            game?: string | null;
            /**
             * Lesson Scope
             * @description For whom a lesson is: all agents of the game, those of the same role, or the agent alone.
             * @default null
             */
            lesson_scope?: ("game" | "role" | "agent") | null;
            /**
             * Lessons
             * @description Lessons in the agents' prompts, as NUMBER-KINDS-WORDING: `2-all-notes`, or `off`; unset: as in what was promoted, none at first.
             * @default null
             */
            lessons?: string | null;
        };
        /**
         * StartMarket
         * @description The table [market] of run.toml.
         */
        StartMarket: {
            /**
             * Agents
             * @description Agents in a window.
             * @default null
             */
            agents?: number | null;
            /**
             * Decisions
             * @description Decision steps of an agent in a window.
             * @default null
             */
            decisions?: number | null;
            /**
             * Explore
             * @description How agents with a model explore: at temperature 1 if theirs is lower, or by taking any answer offered.
             * @default null
             */
            explore?: ("temperature" | "answers") | null;
            /**
             * Luck
             * @description Probability that what happens in an hour has nothing to do with the news; half of such hours go against it.
             * @default null
             */
            luck?: number | null;
            /**
             * Stage
             * @description One ticker or errand with its news a decision; or several, with prediction markets or partners.
             * @default null
             */
            stage?: ("one" | "several") | null;
            /**
             * Temperature
             * @description Temperature of agents that ask a model; at 1 the logged log-probabilities are those of the sampling.
             * @default null
             */
            temperature?: number | null;
            /**
             * World Seed
             * @description Seed of the simulated world.
             * @default null
             */
            world_seed?: number | null;
        };
        /**
         * StartModel
         * @description The table [model] of run.toml.
         */
        StartModel: {
            /**
             * Base Model
             * @description The model to train: the embedded one, a local directory, or a hub name; unset, local and serverless take a Qwen of 7 and 14 billion parameters.
             * @default null
             */
            base_model?: string | null;
            /**
             * Threads
             * @description CPU threads for the model; 0 takes all cores.
             * @default null
             */
            threads?: number | null;
        };
        /**
         * StartPromotion
         * @description The table [promotion] of run.toml.
         */
        StartPromotion: {
            /**
             * Canary
             * @description Promote to this share of the agents first; agents identify themselves by the `user` of a request.
             * @default null
             */
            canary?: number | null;
        };
        /**
         * StartRun
         * @description The table [run] of run.toml.
         */
        StartRun: {
            /**
             * Curriculum
             * @description Which windows come first: in the simulated market the stages and luck up to --stage and --luck, in a log the windows by how hard they are; auto: near what half of the agents succeed at; uniform: any, for comparison.
             * @default null
             */
            curriculum?: ("off" | "auto" | "uniform") | null;
            /**
             * Hold
             * @description While the gate is undecided about the newest checkpoint, train nothing: evaluate it on new windows.
             * @default null
             */
            hold?: boolean | null;
            /**
             * Iterations
             * @description Simulated worlds: days that are played and trained on.
             * @default null
             */
            iterations?: number | null;
            /**
             * Keep Checkpoints
             * @description Number of newest checkpoints to keep on this disk, besides any that agents ever used; 0: keep all.
             * @default null
             */
            keep_checkpoints?: number | null;
            /**
             * Max Lag
             * @description Simulated worlds only: days that play may be ahead of training; 1: the next day is played and judged, by the checkpoint from before this day's training, while this one is trained.
             * @default null
             */
            max_lag?: number | null;
            /**
             * Max Undecided
             * @description Undecided checkpoints in a row after which training starts from what the agents use; 0: never.
             * @default null
             */
            max_undecided?: number | null;
            /**
             * Promote
             * @description Promote the checkpoint if the gate says so.
             * @default null
             */
            promote?: boolean | null;
            /**
             * Require Certified
             * @description Refuse to train on a judge without a passing certificate.
             * @default null
             */
            require_certified?: boolean | null;
            /**
             * Resume
             * @description Resume an interrupted run of this model.
             * @default null
             */
            resume?: boolean | null;
            /**
             * Simulate
             * @description Play the simulated world before each iteration; auto: only on the embedded database.
             * @default null
             */
            simulate?: ("auto" | "on" | "off") | null;
            /**
             * Windows Per Iteration
             * @description Simulated worlds only: hours in such a day.
             * @default null
             */
            windows_per_iteration?: number | null;
        };
        /**
         * StartTables
         * @description Settings as in run.toml: a table for each section.
         */
        StartTables: {
            /** @default null */
            backend?: components["schemas"]["StartBackend"] | null;
            /** @default null */
            chance?: components["schemas"]["StartChance"] | null;
            /** @default null */
            embedding?: components["schemas"]["StartEmbedding"] | null;
            /** @default null */
            evaluation?: components["schemas"]["StartEvaluation"] | null;
            /** @default null */
            gate?: components["schemas"]["StartGate"] | null;
            /** @default null */
            groups?: components["schemas"]["StartGroups"] | null;
            /** @default null */
            judge?: components["schemas"]["StartJudge"] | null;
            /** @default null */
            lessons?: components["schemas"]["StartLessons"] | null;
            /** @default null */
            market?: components["schemas"]["StartMarket"] | null;
            /** @default null */
            model?: components["schemas"]["StartModel"] | null;
            /** @default null */
            promotion?: components["schemas"]["StartPromotion"] | null;
            /** @default null */
            run?: components["schemas"]["StartRun"] | null;
            /** @default null */
            training?: components["schemas"]["StartTraining"] | null;
            /** @default null */
            windows?: components["schemas"]["StartWindows"] | null;
            /** @default null */
            workers?: components["schemas"]["StartWorkers"] | null;
        };
        /**
         * StartTraining
         * @description The table [training] of run.toml.
         */
        StartTraining: {
            /**
             * Advantage Scale
             * @description batch: every step is as large as any other, whatever its scores; absolute: by the size of its advantages.
             * @default null
             */
            advantage_scale?: ("batch" | "absolute") | null;
            /**
             * Balance Answers
             * @description After each step, take out a preference for one answer that is the same in every hour (CPU).
             * @default null
             */
            balance_answers?: boolean | null;
            /**
             * Base Names
             * @description Other names under which agents run the base model: step 0 of the trained one.
             * @default null
             */
            base_names?: string[] | null;
            /**
             * Baseline
             * @description Take what is usual for a member's agent or role off its score: its running mean in what was trained; or, in the simulated market with the offline judge, what HOLD would have scored in its place.
             * @default null
             */
            baseline?: ("off" | "agent" | "role" | "leave-one-out") | null;
            /**
             * Entropy Bonus
             * @description Weight of the entropy of each reply's first token, against early collapse (CPU).
             * @default null
             */
            entropy_bonus?: number | null;
            /**
             * Epsilon
             * @description PPO clip range below 1.
             * @default null
             */
            epsilon?: number | null;
            /**
             * Epsilon High
             * @description PPO clip range above 1; unset: as --epsilon.
             * @default null
             */
            epsilon_high?: number | null;
            /**
             * Foreign
             * @description Tokens written by another model: learn from good ones only, from all, or from none.
             * @default null
             */
            foreign?: ("positive" | "all" | "none") | null;
            /**
             * Groups Per Step
             * @description Groups in one gradient step.
             * @default null
             */
            groups_per_step?: number | null;
            /**
             * Importance Level
             * @description Level of the importance ratio.
             * @default null
             */
            importance_level?: ("token" | "sequence") | null;
            /**
             * Init From
             * @description Begin a new --model with another's adapter, MODEL@stepN, as its first step (CPU).
             * @default null
             */
            init_from?: string | null;
            /**
             * Kl
             * @description Weight of the KL penalty to the base model, where the backend has it.
             * @default null
             */
            kl?: number | null;
            /**
             * Learning Rate
             * @description AdamW learning rate of the LoRA adapter; unset, local and serverless take ART's 5e-6.
             * @default null
             */
            learning_rate?: number | null;
            /**
             * Lora Rank
             * @description Rank of the LoRA adapter (CPU and local).
             * @default null
             */
            lora_rank?: number | null;
            /**
             * Loss
             * @description Clipped PPO objective, or CISPO.
             * @default null
             */
            loss?: ("ppo" | "cispo") | null;
            /**
             * Max Grad Norm
             * @description Gradient clipping.
             * @default null
             */
            max_grad_norm?: number | null;
            /**
             * Max Importance
             * @description Most that a token counts which was sampled more than --max-staleness steps ago; on the CPU one that has moved so far already is pushed no further.
             * @default null
             */
            max_importance?: number | null;
            /**
             * Max Staleness
             * @description Tokens sampled more than this many steps ago also count by how much likelier the policy finds them now.
             * @default null
             */
            max_staleness?: number | null;
            /**
             * Max Steps
             * @description Maximum number of gradient steps in this run; 0: no limit.
             * @default null
             */
            max_steps?: number | null;
            /**
             * Pattern Feedback
             * @description Whether significant error patterns of what was trained give the groups and arms that show them more weight: in a step, in a prioritised replay and in a curriculum; auto: where one of those two is chosen.
             * @default null
             */
            pattern_feedback?: ("auto" | "on" | "off") | null;
            /**
             * Pattern Weight
             * @description Most that a group counts in a step that shows an error pattern, where another counts 1; the step is no longer than without. 1: patterns change no step.
             * @default null
             */
            pattern_weight?: number | null;
            /**
             * Potential
             * @description --step-credit: take what a state was worth off the decisions in it, as a potential, which cannot change the order of policies; equity: the account's gain so far on its balance.
             * @default null
             */
            potential?: ("off" | "equity") | null;
            /**
             * Remainder
             * @description Groups left over at the end of a pass: trained at their share of the learning rate, at all of it, or carried to the next pass; auto: scale, but full in the simulated market.
             * @default null
             */
            remainder?: ("auto" | "scale" | "full" | "carry") | null;
            /**
             * Replay
             * @description Train groups again in the places that groups without signal leave empty: any, or the telling and new.
             * @default null
             */
            replay?: ("off" | "uniform" | "prioritised") | null;
            /**
             * Replay Lag
             * @description Replay groups that were first trained at most this many steps ago.
             * @default null
             */
            replay_lag?: number | null;
            /**
             * Replay Share
             * @description Maximum share of a step's groups that are replayed.
             * @default null
             */
            replay_share?: number | null;
            /**
             * Replay Uses
             * @description Maximum number of times that a group is trained, the first included.
             * @default null
             */
            replay_uses?: number | null;
            /**
             * Scale Rewards
             * @description Divide advantages by the group's standard deviation: a close decision counts as much as a clear one.
             * @default null
             */
            scale_rewards?: boolean | null;
            /**
             * Step Discount
             * @description --step-credit: how much of the scores of later decisions a decision is credited with.
             * @default null
             */
            step_discount?: number | null;
            /**
             * Stop On
             * @description Stop a collapsing run when a metric of a step crosses a threshold, e.g. entropy<0.01,kl>5.
             * @default null
             */
            stop_on?: string[] | null;
            /**
             * Token Weights
             * @description reply: every reply counts the same, whatever its length; token: every token does, as in Dr. GRPO (CPU).
             * @default null
             */
            token_weights?: ("reply" | "token") | null;
            /**
             * Train Workers
             * @description Processes that share a gradient step, each with its copy of the model; they divide --threads (CPU).
             * @default null
             */
            train_workers?: number | null;
            /**
             * Undo On
             * @description Go back to the last step before a metric crossed a threshold, and on with smaller steps (CPU); off: never.
             * @default null
             */
            undo_on?: string[] | null;
            /**
             * Updates
             * @description Optimizer updates per batch, each on its share of the groups (CPU).
             * @default null
             */
            updates?: number | null;
            /**
             * Warm Start
             * @description Number of first steps that only imitate replies judged above their group's mean (CPU).
             * @default null
             */
            warm_start?: number | null;
            /**
             * Weight Decay
             * @description AdamW weight decay (CPU; ART's local trainer has 0.1).
             * @default null
             */
            weight_decay?: number | null;
        };
        /**
         * StartWindows
         * @description The table [windows] of run.toml.
         */
        StartWindows: {
            /**
             * Allow Partial Outcomes
             * @description Also use windows with only some known outcomes.
             * @default null
             */
            allow_partial_outcomes?: boolean | null;
            /**
             * Embargo
             * @description Hours before the evaluation windows that are not trained either.
             * @default null
             */
            embargo?: string | null;
            /**
             * Eval Windows
             * @description Maximum number of windows kept for, and used in, one evaluation.
             * @default null
             */
            eval_windows?: number | null;
            /**
             * Facts View
             * @description Read facts from this SQL view of yours instead of our own table.
             * @default null
             */
            facts_view?: string | null;
            /**
             * Held Out Share
             * @description Share of windows kept for the next ruling, the newest: at least 15, none if fewer than 30.
             * @default null
             */
            held_out_share?: number | null;
            /**
             * Lookback
             * @description How far back windows are read.
             * @default null
             */
            lookback?: string | null;
            /**
             * Max Trajectory Mb
             * @description Leave out a trajectory with more JSON than this as oversized.
             * @default null
             */
            max_trajectory_mb?: number | null;
            /**
             * Min Actions
             * @description Minimum number of actions in a trajectory.
             * @default null
             */
            min_actions?: number | null;
            /**
             * Min Agents
             * @description Minimum number of usable agents in a window.
             * @default null
             */
            min_agents?: number | null;
            /**
             * Min Windows
             * @description Minimum number of usable windows for a training run.
             * @default null
             */
            min_windows?: number | null;
            /**
             * Until
             * @description Read as if it were this UTC time (ISO 8601), to repeat a run.
             * @default null
             */
            until?: string | null;
            /**
             * World
             * @description Kind of game: market, quests, desk, or a file.
             * @default null
             */
            world?: string | null;
        };
        /**
         * StartWorkers
         * @description The table [workers] of run.toml.
         */
        StartWorkers: {
            /**
             * Ray Address
             * @description Address of the Ray cluster to place the workers on, or `auto`; unset: Ray is started on this machine.
             * @default null
             */
            ray_address?: string | null;
            /**
             * Worker Env
             * @description File with DATABASE_URL and the judge's key that each worker reads on its own host; unset: one for this machine is written, and on others the environment of Ray's processes counts.
             * @default null
             */
            worker_env?: string | null;
            /**
             * Worker Lease
             * @description Silence of a worker after which another one does its units.
             * @default null
             */
            worker_lease?: string | null;
            /**
             * Workers
             * @description Worker processes that read and judge, placed by Ray (the extra `scale`); 0: this process does it.
             * @default null
             */
            workers?: number | null;
        };
        /**
         * StepPoint
         * @description One gradient step, as a point of the curves.
         */
        StepPoint: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Entropy */
            entropy: number | null;
            /** Kl */
            kl: number | null;
            /** Reward */
            reward: number | null;
            /** Reward Std */
            reward_std: number | null;
            /** Run Id */
            run_id: string;
            /** Step */
            step: number;
            /** Tokens Per Second */
            tokens_per_second: number | null;
            /** Trainable Tokens */
            trainable_tokens: number | null;
        };
        /**
         * StoredTrajectory
         * @description What became of a row.
         */
        StoredTrajectory: {
            /** Agent Id */
            agent_id: string;
            /**
             * Reason
             * @default
             */
            reason?: string;
            /** State */
            state: string;
            /** Trajectory Id */
            trajectory_id: string;
            /** Window Id */
            window_id: string | null;
        };
        /**
         * TaskResult
         * @description What a model answered to a task.
         */
        TaskResult: {
            /**
             * Action
             * @description What it did, in a word.
             * @default null
             */
            action?: string | null;
            /** Result */
            result: string;
            /** Task */
            task: string;
        };
        /**
         * UsedWindow
         * @description One window as runs of the model have used it.
         */
        UsedWindow: {
            /** Consulted */
            consulted: number;
            /** Groups */
            groups: number;
            /** Left Out */
            left_out: {
                [key: string]: number;
            };
            /** Mean Score */
            mean_score: number | null;
            /** Runs */
            runs: number;
            /** State */
            state: string;
            /** Trained */
            trained: number;
            /** Window Id */
            window_id: string;
        };
        /**
         * WrittenSelect
         * @description A prompt to choose a mutation for, by its text.
         */
        WrittenSelect: {
            /**
             * Action Mask
             * @description Which actions are allowed; unset: those that our operators could make of the prompt.
             * @default null
             */
            action_mask?: [
                true,
                boolean,
                boolean,
                boolean,
                boolean,
                boolean
            ] | null;
            /**
             * Deterministic
             * @description The most likely action instead of a drawn one.
             * @default false
             */
            deterministic?: boolean;
            /** Prompt */
            prompt: string;
            /**
             * Seed
             * @description To draw the same action again.
             * @default null
             */
            seed?: number | null;
        };
        /**
         * WrittenState
         * @description A prompt by its text: it is embedded here.
         */
        WrittenState: {
            /**
             * Action Mask
             * @description Which actions are allowed; unset: those that our operators could make of the prompt.
             * @default null
             */
            action_mask?: [
                true,
                boolean,
                boolean,
                boolean,
                boolean,
                boolean
            ] | null;
            /** Prompt */
            prompt: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    ask_advice: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MessagesBody"] | components["schemas"]["ObservationBody"];
            };
        };
        responses: {
            /** @description What the promoted release would do, or an abstention */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Abstained */
                        abstained: boolean;
                        /** Advice Id */
                        advice_id: string;
                        /** Confidence */
                        confidence: number | null;
                        /** Explanation */
                        explanation: string;
                        /** Proposal */
                        proposal: string | null;
                        /** Reason */
                        reason: string | null;
                        /** Release */
                        release: string | null;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    tell_outcome: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                advice_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Decision Right
                     * @description Whether what the agent did was right: only the game's to say.
                     * @default null
                     */
                    decision_right?: boolean | null;
                    /**
                     * Right
                     * @description Whether the proposal was right: only the game's to say.
                     * @default null
                     */
                    right?: boolean | null;
                    /**
                     * Taken
                     * @description Whether the agent did what was proposed.
                     * @default null
                     */
                    taken?: boolean | null;
                    /**
                     * Trajectory Id
                     * @description The row in which the game logs the decision; unset: we send one.
                     * @default null
                     */
                    trajectory_id?: string | null;
                };
            };
        };
        responses: {
            /** @description Say what came of a proposal */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Advice Id */
                        advice_id: string;
                        /** Decision Right */
                        decision_right: boolean | null;
                        /** Returned */
                        returned: string;
                        /** Right */
                        right: boolean | null;
                        /** Right By */
                        right_by: string | null;
                        /** State */
                        state: string;
                        /** Taken */
                        taken: boolean | null;
                        /** Taken By */
                        taken_by: string | null;
                        /** Trajectory Id */
                        trajectory_id: string | null;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    delete_agent: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                agent_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Forget everything of one agent */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Agent Id */
                        agent_id: string;
                        /** Files */
                        files: number;
                        rows: components["schemas"]["ForgottenRows"];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_audit: {
        parameters: {
            query?: {
                cursor?: string | null;
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What was done, by whom and why */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["AuditRow"][];
                        /**
                         * Next
                         * @default null
                         */
                        next?: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_events: {
        parameters: {
            query?: {
                after?: number | null;
            };
            header?: {
                /** @description The last event that was seen: the stream continues after it. */
                "Last-Event-ID"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What happens, as server-sent events */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    ingest_facts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Facts */
                    facts?: components["schemas"]["SentFact"][];
                    /**
                     * Hours
                     * @default 1
                     */
                    hours?: number;
                    /** Predictions */
                    predictions?: components["schemas"]["SentPrediction"][];
                    /** Stocks */
                    stocks?: components["schemas"]["SentStock"][];
                    /**
                     * Windowid
                     * @example 2026-11-02T10:00
                     */
                    windowId: string;
                };
            };
        };
        responses: {
            /** @description Send what really happened in a window */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Window Id */
                        window_id: string;
                        /** Written */
                        written: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Keys for ingest, without the keys */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["IngestKey"][];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    make_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Kind
                     * @enum {string}
                     */
                    kind: "agent" | "team" | "game";
                    /**
                     * Owner
                     * @description The agent's id, the team's name, or the game's.
                     */
                    owner: string;
                };
            };
        };
        responses: {
            /** @description Make a key for an agent, a team or the game */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Key */
                        key: string;
                        /** Key Id */
                        key_id: string;
                        /** Kind */
                        kind: string;
                        /** Owner */
                        owner: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description End a key for ingest */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * Created At
                         * Format: date-time
                         */
                        created_at: string;
                        /** Key Id */
                        key_id: string;
                        /** Kind */
                        kind: string;
                        /** Owner */
                        owner: string;
                        /** Revoked At */
                        revoked_at: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    ingest_trajectories: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Trajectories */
                    trajectories: components["schemas"]["SentRow"][];
                };
            };
        };
        responses: {
            /** @description Send trajectories, stamped by the key with their agent and by their start with their window */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Results */
                        results: components["schemas"]["StoredTrajectory"][];
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    consolidate_memories: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Whole
                     * @description Also compare what was compared before.
                     * @default false
                     */
                    whole?: boolean;
                };
            };
        };
        responses: {
            /** @description Merge what says the same, and forget what is worth least */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Compared */
                        compared: number;
                        /** Contradicted */
                        contradicted: number;
                        /** Deeds */
                        deeds: string[];
                        /** Merged */
                        merged: number;
                        /** Purged */
                        purged: number;
                        /** Retired */
                        retired: number;
                        /** Rules */
                        rules: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_admissions: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lessons from outside that were put to the gate, and what came of it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["AdmissionRow"][];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    gate_memories: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Agent Id
                     * @description Whose lessons; unset: everybody's.
                     * @default null
                     */
                    agent_id?: string | null;
                };
            };
        };
        responses: {
            /** @description Have lessons from outside compared with and without, and shown if they pass the gate */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Admission */
                        admission: string;
                        /** Lessons */
                        lessons: number;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    policy_of_agent: {
        parameters: {
            query: {
                agent_id: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Which lessons an agent is to be shown, by the release that it was given */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Lessons Policy */
                        lessons_policy: string;
                        /** Release */
                        release: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    retrieve_memories: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Agent Id */
                    agent_id: string;
                    /**
                     * As Of
                     * @description The time of the decision in the game's clock; unset: now. Nothing later is given.
                     * @default null
                     */
                    as_of?: string | null;
                    /** Context */
                    context: string;
                    /**
                     * K
                     * @default 5
                     */
                    k?: number;
                    /** Memory Types */
                    memory_types?: components["schemas"]["LessonKind"][];
                    /**
                     * Role
                     * @default null
                     */
                    role?: string | null;
                };
            };
        };
        responses: {
            /** @description Look up lessons for a decision, as of its time */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Items */
                        items: components["schemas"]["MemoryItem"][];
                        /** Took Ms */
                        took_ms: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    store_memory: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Agent Id
                     * @description Whose lesson it is; with an agent's key, that agent.
                     */
                    agent_id: string;
                    /** Content */
                    content: string;
                    memory_type: components["schemas"]["LessonKind"];
                    /**
                     * Title
                     * @default null
                     */
                    title?: string | null;
                };
            };
        };
        responses: {
            /** @description Keep a lesson from outside */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Duplicate */
                        duplicate: boolean;
                        /** Id */
                        id: string;
                        /**
                         * Shown
                         * @default false
                         */
                        shown?: boolean;
                        /**
                         * Trust
                         * @default api
                         */
                        trust?: string;
                    };
                };
            };
            /** @description Keep a lesson from outside */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Duplicate */
                        duplicate: boolean;
                        /** Id */
                        id: string;
                        /**
                         * Shown
                         * @default false
                         */
                        shown?: boolean;
                        /**
                         * Trust
                         * @default api
                         */
                        trust?: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_metrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Figures for Prometheus */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain; version=0.0.4; charset=utf-8": string;
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_patterns: {
        parameters: {
            query?: {
                model?: string | null;
                weeks?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What was wrong with rows, by week */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["PatternRow"][];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_prompts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Prompts, the latest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["PromptEntry"][];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    promote_prompt: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                prompt_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Canary
                     * @description To this share of the agents first.
                     * @default null
                     */
                    canary?: number | null;
                    /**
                     * Force
                     * @description Against the gate, or without evidence; recorded.
                     * @default false
                     */
                    force?: boolean;
                    /**
                     * Reason
                     * @description Why; kept with the release.
                     */
                    reason: string;
                    /**
                     * Role
                     * @description Whose prompt it is to be.
                     * @default
                     */
                    role?: string;
                };
            };
        };
        responses: {
            /** @description Give a prompt to all agents of its role, if the gate's evidence allows it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Forced */
                        forced: boolean;
                        /** Reason */
                        reason: string;
                        /** Release */
                        release: string;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    current_prompt: {
        parameters: {
            query: {
                agent_id: string;
                role?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The prompt that an agent is to use, by the release that it was given */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Examples */
                        examples: components["schemas"]["PromptTurns"][];
                        /** Prompt Id */
                        prompt_id: string;
                        /** Prompt Version */
                        prompt_version: string;
                        /** Release */
                        release: string | null;
                        /** Role */
                        role: string;
                        /** System */
                        system: string | null;
                        /** Text */
                        text: string | null;
                        /** Variables */
                        variables: string[];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_distribution: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EmbeddedState"] | components["schemas"]["WrittenState"];
            };
        };
        responses: {
            /** @description How likely each mutation is for a prompt */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Action Mask */
                        action_mask: boolean[];
                        /** Embedding */
                        embedding: number[] | null;
                        /** Entropy */
                        entropy: number;
                        /** Names */
                        names: string[];
                        /** Probabilities */
                        probabilities: number[];
                        /** Value */
                        value: number;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    load_policy: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Name */
                    name: string;
                };
            };
        };
        responses: {
            /** @description Go on from a saved policy, as a new version */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** From Version */
                        from_version: number;
                        /** Name */
                        name: string;
                        /** Sha256 */
                        sha256: string;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    save_policy: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Name */
                    name: string;
                };
            };
        };
        responses: {
            /** @description Save the policy under a name */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Name */
                        name: string;
                        /** Sha256 */
                        sha256: string;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description Save the policy under a name */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Name */
                        name: string;
                        /** Sha256 */
                        sha256: string;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    select_action: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EmbeddedSelect"] | components["schemas"]["WrittenSelect"];
            };
        };
        responses: {
            /** @description Choose a mutation for a prompt */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Action */
                        action: number;
                        /** Action Mask */
                        action_mask: boolean[];
                        /** Embedding */
                        embedding: number[] | null;
                        /** Log Prob */
                        log_prob: number;
                        /** Name */
                        name: string;
                        /** Probabilities */
                        probabilities: number[];
                        /** Value */
                        value: number;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    policy_stats: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The policy's version, experience and last losses */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Action Counts */
                        action_counts: {
                            [key: string]: number;
                        };
                        /** Actions */
                        actions: string[];
                        buffer: components["schemas"]["BufferStats"];
                        /** Dimensions */
                        dimensions: number;
                        experience: components["schemas"]["ExperienceStats"];
                        last_update: components["schemas"]["PolicyLosses"] | null;
                        /** Mean Reward */
                        mean_reward: number | null;
                        /** Parent */
                        parent: number | null;
                        /** Saved */
                        saved: string[];
                        /** Updates */
                        updates: number;
                        /** Version */
                        version: number;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    store_experience: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** Action */
                    action: number;
                    /**
                     * Action Mask
                     * @description Which actions were allowed; unset: all.
                     * @default null
                     */
                    action_mask?: [
                        true,
                        boolean,
                        boolean,
                        boolean,
                        boolean,
                        boolean
                    ] | null;
                    /**
                     * Done
                     * @description Whether the episode ended with it.
                     * @default true
                     */
                    done?: boolean;
                    /**
                     * Embedding
                     * @description 1536 numbers.
                     */
                    embedding: number[];
                    /**
                     * Episode
                     * @description Unset: an episode of its own.
                     * @default null
                     */
                    episode?: string | null;
                    /**
                     * Experience Id
                     * @description The same id twice is stored once: for retries.
                     * @default null
                     */
                    experience_id?: string | null;
                    /** Reward */
                    reward: number;
                    /**
                     * Step
                     * @description Its place in the episode.
                     * @default 0
                     */
                    step?: number;
                    /**
                     * Version
                     * @description Of the policy that acted, as /select_action answered it.
                     */
                    version: number;
                };
            };
        };
        responses: {
            /** @description Keep what a mutation was worth */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Experience Id */
                        experience_id: string;
                        /** Needed */
                        needed: number;
                        /** Stored */
                        stored: boolean;
                        /** Usable */
                        usable: boolean;
                        /** Version */
                        version: number;
                        /** Waiting */
                        waiting: number;
                    };
                };
            };
            /** @description Keep what a mutation was worth */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Experience Id */
                        experience_id: string;
                        /** Needed */
                        needed: number;
                        /** Stored */
                        stored: boolean;
                        /** Usable */
                        usable: boolean;
                        /** Version */
                        version: number;
                        /** Waiting */
                        waiting: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    update_policy: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Wait
                     * @description Answer when the update is done; otherwise at once, with 202.
                     * @default true
                     */
                    wait?: boolean;
                };
            };
        };
        responses: {
            /** @description Learn from the experience, once the buffer is full */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        losses: components["schemas"]["PolicyLosses"] | null;
                        /** Needed */
                        needed: number;
                        /** State */
                        state: string;
                        /** Version */
                        version: number;
                        /** Waiting */
                        waiting: number;
                    };
                };
            };
            /** @description Learn from the experience, once the buffer is full */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        losses: components["schemas"]["PolicyLosses"] | null;
                        /** Needed */
                        needed: number;
                        /** State */
                        state: string;
                        /** Version */
                        version: number;
                        /** Waiting */
                        waiting: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_releases: {
        parameters: {
            query?: {
                model?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Checkpoints with state and evidence */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Canary */
                        canary: string | null;
                        /** Entries */
                        entries: components["schemas"]["ReleaseEntry"][];
                        /** History */
                        history: components["schemas"]["PromotionEntry"][];
                        /** Model */
                        model: string;
                        /** Serving */
                        serving: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    canary_release: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                release: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Action
                     * @default start
                     * @enum {string}
                     */
                    action?: "start" | "finish" | "end";
                    /**
                     * Force
                     * @description `start` against the gate, `finish` whatever the results; recorded.
                     * @default false
                     */
                    force?: boolean;
                    /**
                     * Reason
                     * @description Why; kept with the release.
                     */
                    reason: string;
                    /**
                     * Share
                     * @description Of the agents, for `start`.
                     * @default 0.1
                     */
                    share?: number;
                };
            };
        };
        responses: {
            /** @description Start, settle or take back a canary */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Forced */
                        forced: boolean;
                        /** Reason */
                        reason: string;
                        /** Release */
                        release: string;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    promote_release: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                release: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Force
                     * @description Against the gate, or without evidence; recorded.
                     * @default false
                     */
                    force?: boolean;
                    /**
                     * Reason
                     * @description Why; kept with the release.
                     */
                    reason: string;
                };
            };
        };
        responses: {
            /** @description Give a checkpoint to all agents, if the gate's evidence allows it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Forced */
                        forced: boolean;
                        /** Reason */
                        reason: string;
                        /** Release */
                        release: string;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    roll_back_release: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                release: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Reason
                     * @description Why; kept with the release.
                     */
                    reason: string;
                };
            };
        };
        responses: {
            /** @description Let all agents use this earlier checkpoint; 0 is the base model */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Forced */
                        forced: boolean;
                        /** Reason */
                        reason: string;
                        /** Release */
                        release: string;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    calculate_reward: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LoggedBody"] | components["schemas"]["ResultBody"] | components["schemas"]["GivenBody"];
            };
        };
        responses: {
            /** @description Have one trajectory or result judged now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Cached */
                        cached: boolean;
                        /** Compared With */
                        compared_with: number;
                        /** Components */
                        components: components["schemas"]["Component"][];
                        /** Cost */
                        cost: number;
                        /** Explanation */
                        explanation: string;
                        /** Judge */
                        judge: string;
                        /** Score */
                        score: number;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description judge failed */
            502: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_reward_history: {
        parameters: {
            query?: {
                agent_id?: string | null;
                cursor?: string | null;
                limit?: number;
                model?: string | null;
                role?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Rewards that were trained, the latest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["RewardEntry"][];
                        /**
                         * Next
                         * @default null
                         */
                        next?: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_runs: {
        parameters: {
            query?: {
                cursor?: string | null;
                limit?: number;
                model?: string | null;
                state?: ("running" | "done" | "interrupted" | "failed") | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Runs, the latest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["RunRow"][];
                        /**
                         * Next
                         * @default null
                         */
                        next?: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_run: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description One run */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Attempts */
                        attempts: number;
                        /** Backend */
                        backend: string | null;
                        /** Base Model */
                        base_model: string | null;
                        /** Cost Usd */
                        cost_usd: number;
                        /** Error */
                        error: string | null;
                        /** Finished At */
                        finished_at: string | null;
                        /** Host */
                        host: string | null;
                        /** Judge Calls */
                        judge_calls: number;
                        /** Left Out */
                        left_out: number;
                        /** Model */
                        model: string;
                        progress: components["schemas"]["ProgressFacts"];
                        /** Release */
                        release: string | null;
                        /** Report */
                        report: string | null;
                        /** Ruling */
                        ruling: string | null;
                        /** Run Id */
                        run_id: string;
                        /** Started At */
                        started_at: string | null;
                        /** State */
                        state: string;
                        /** Steps */
                        steps: number;
                        /** Trajectories */
                        trajectories: number;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_run_metrics: {
        parameters: {
            query?: {
                after?: number;
                limit?: number;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The steps of a run */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Run Id */
                        run_id: string;
                        /** Steps */
                        steps: components["schemas"]["StepPoint"][];
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    start_training: {
        parameters: {
            query?: never;
            header?: {
                /** @description The same key is the same training, however often it is sent. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Batch Size
                     * @description training.groups_per_step.
                     * @default null
                     */
                    batch_size?: number | null;
                    /**
                     * Learning Rate
                     * @description training.learning_rate.
                     * @default null
                     */
                    learning_rate?: number | null;
                    /**
                     * Max Cost
                     * @description judge.max_cost, in US dollars.
                     * @default null
                     */
                    max_cost?: number | null;
                    /**
                     * Model
                     * @description Name of the model; unset: the console's.
                     * @default null
                     */
                    model?: string | null;
                    /**
                     * Num Epochs
                     * @description run.iterations: days of the closed loop.
                     * @default null
                     */
                    num_epochs?: number | null;
                    /**
                     * @description As in run.toml.
                     * @default null
                     */
                    settings?: components["schemas"]["StartTables"] | null;
                };
            };
        };
        responses: {
            /** @description Ask any idle host to train a model */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Model */
                        model: string;
                        /** Run Id */
                        run_id: string;
                        /** State */
                        state: string;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    training_status: {
        parameters: {
            query?: {
                model?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What is happening to a model now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * At
                         * Format: date-time
                         */
                        at: string;
                        /** Canary */
                        canary: string | null;
                        /** Cost */
                        cost: number;
                        /** Entropy */
                        entropy: number | null;
                        /** Error */
                        error: string | null;
                        /** Eta */
                        eta: number | null;
                        /** Host */
                        host: string | null;
                        /** Judge Calls */
                        judge_calls: number;
                        /** Kl */
                        kl: number | null;
                        /** Max Cost */
                        max_cost: number | null;
                        /** Model */
                        model: string;
                        /** Position */
                        position: number;
                        /** Reward */
                        reward: number | null;
                        /** Reward Std */
                        reward_std: number | null;
                        /** Run Id */
                        run_id: string | null;
                        /** Run State */
                        run_state: string | null;
                        /** Serving */
                        serving: string | null;
                        /** Share */
                        share: number | null;
                        /** Stage */
                        stage: string | null;
                        /** State */
                        state: string;
                        /** Step */
                        step: number | null;
                        /** Tokens Per Second */
                        tokens_per_second: number | null;
                        /** Unit */
                        unit: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    stop_training: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Model
                     * @description Name of the model; unset: the console's.
                     * @default null
                     */
                    model?: string | null;
                    /**
                     * Reason
                     * @default
                     */
                    reason?: string;
                };
            };
        };
        responses: {
            /** @description Ask whoever trains a model to stop after the step in hand */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Model */
                        model: string;
                        /** Run Id */
                        run_id: string | null;
                    };
                };
            };
            /** @description not json */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not allowed */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not json */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    get_windows: {
        parameters: {
            query?: {
                cursor?: string | null;
                limit?: number;
                model?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Windows that runs met, the newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /** Entries */
                        entries: components["schemas"]["UsedWindow"][];
                        /**
                         * Next
                         * @default null
                         */
                        next?: string | null;
                    };
                };
            };
            /** @description no key */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description not found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description wrong host */
            421: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description invalid */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description too many */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description internal */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description database away */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
}
