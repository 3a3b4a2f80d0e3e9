// Made by `npm run generate` from the server's OpenAPI document: do not edit.

export interface paths {
    "/get_distribution": {
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
    "/load": {
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
    "/save": {
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
    "/select_action": {
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
    "/stats": {
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
    "/store_experience": {
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
    "/update": {
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
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** BufferStats */
        BufferStats: {
            /** Needed */
            needed: number;
            /** Size */
            size: number;
            /** Waiting */
            waiting: number;
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
}
