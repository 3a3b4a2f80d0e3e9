import { sentence } from "../errors.js";
import { snowflakeId } from "./snowflake.js";

/** Anything that JSON can hold; `undefined` values vanish, as in the game's own log. */
export type JsonObject = { readonly [name: string]: unknown };

/** The agent's accounts when it decides, and any other figure of its state. */
export interface EnvironmentState extends JsonObject {
  readonly agentBalance?: number;
  readonly agentPnL?: number;
  readonly openPositions?: number;
  readonly role?: string;
}

/** One call of the agent's model: exactly what it saw and what it replied. */
export interface LLMCall {
  readonly model: string;
  readonly systemPrompt?: string;
  readonly userPrompt?: string;
  readonly response: string;
  /** Default: `action`. Only calls that make decisions are trained on. */
  readonly purpose?: "action" | "reasoning" | "evaluation" | "response" | "other";
  readonly temperature?: number;
  readonly maxTokens?: number;
  readonly topP?: number;
  readonly latencyMs?: number;
  readonly actionType?: string;
  readonly reasoning?: string;
  readonly modelVersion?: string;
  readonly callId?: string;
  readonly timestamp?: number;
  /** The whole conversation, if it was more than the two prompts. */
  readonly messages?: readonly ChatMessage[];
  readonly promptTokens?: number;
  readonly completionTokens?: number;
  /** The sampled tokens, with the log-probability of each under the policy that sampled it. */
  readonly completionTokenIds?: readonly number[];
  readonly completionLogprobs?: readonly number[];
  readonly logprobsTemperature?: number;
  readonly finishReason?: string;
}

export interface ChatMessage {
  readonly role: string;
  readonly content: string | null;
}

/** What the agent did or tried to do. */
export interface Action {
  readonly actionType: string;
  readonly parameters?: JsonObject;
  readonly success: boolean;
  readonly result?: unknown;
  readonly error?: string;
  readonly reasoning?: string;
}

/** How a trajectory begins. */
export interface StartOptions {
  /** Default: now. Its hour is the window. */
  startedAt?: Date;
  /** Default: the window. */
  scenarioId?: string;
  isTrainingData?: boolean;
  isEvaluation?: boolean;
  /** Generated unless given; the same id again is the same trajectory. */
  trajectoryId?: string;
}

/** How it ends: the agent's lifetime figures after the last step. */
export interface EndOptions {
  finalBalance?: number;
  finalPnL?: number;
  /** Stored for the game only: what an agent's row says is never shown to the judge as truth. */
  gameKnowledge?: JsonObject;
  at?: Date;
}

/** A row as `POST /ingest/trajectories` takes it. */
export interface Row {
  trajectoryId: string;
  agentId: string;
  startTime: string;
  endTime: string;
  stepsJson: string;
  metadataJson: string;
  scenarioId?: string;
  finalBalance?: number;
  finalPnL?: number;
  totalReward: number;
  isTrainingData: boolean;
  isEvaluation: boolean;
}

/** One decision. It is recorded when it is completed. */
export class StepRecording {
  readonly #json: Record<string, unknown>;
  readonly #calls: unknown[] = [];
  readonly #accesses: unknown[] = [];
  #isComplete = false;

  /** @internal */
  constructor(
    private readonly steps: RecordedStep[],
    state: EnvironmentState,
    at: Date,
  ) {
    this.#json = { stepNumber: 0, timestamp: at.getTime(), environmentState: copied(state, "state") };
  }

  get isComplete(): boolean {
    return this.#isComplete;
  }

  /** Log what the agent looked up before it decided. */
  logProviderAccess(providerName: string, data: JsonObject, purpose: string): void {
    this.#accesses.push({ providerName, data: copied(data, "data"), purpose });
  }

  /** Log one call of the agent's model, with token ids and log-probabilities if they are known. */
  logLLMCall(call: LLMCall): void {
    const [ids, logprobs] = [call.completionTokenIds?.length, call.completionLogprobs?.length];
    if (ids !== undefined && logprobs !== undefined && ids !== logprobs) {
      throw new RangeError(`${ids} completion token ids but ${logprobs} log-probabilities: give one per id.`);
    }
    // Keys that every reader of the game expects are always present; the others only when known.
    const prompts = { systemPrompt: lastText(call.messages, "system"), userPrompt: lastText(call.messages, "user") };
    const always = { ...prompts, temperature: 1, maxTokens: 0, purpose: "action" };
    this.#calls.push({ ...always, ...copied(call, "call") });
  }

  /** Finish the step with its action. */
  completeStep(action: Action, reward = 0): void {
    if (this.#isComplete) throw new Error("A step was completed twice.");
    const known = figure(reward, "reward");
    this.steps.push({
      ...this.#json,
      stepNumber: this.steps.length,
      providerAccesses: this.#accesses,
      llmCalls: this.#calls,
      action: { parameters: {}, ...copied(action, "action") },
      reward: known,
    });
    this.#isComplete = true;
  }
}

interface RecordedStep extends Record<string, unknown> {
  reward: number;
}

/** One agent's trajectory in a window. */
export class TrajectoryRecording {
  readonly trajectoryId: string;
  readonly #steps: RecordedStep[] = [];
  readonly #startedAt: Date;
  #hasEnded = false;

  /** @internal `store` returns when the row is on disk. */
  constructor(
    private readonly store: (row: Row) => Promise<void>,
    readonly agentId: string,
    private readonly options: StartOptions,
  ) {
    this.trajectoryId = options.trajectoryId ?? snowflakeId();
    for (const [name, value] of Object.entries({ agentId, trajectoryId: this.trajectoryId }))
      refuseOtherNames(name, value);
    if ((options.scenarioId?.length ?? 0) > 100) throw new RangeError("scenarioId: use at most 100 characters.");
    this.#startedAt = moment(options.startedAt ?? new Date(), "startedAt");
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Begin a step in this state of the agent's accounts. */
  step(state: EnvironmentState, at: Date = new Date()): StepRecording {
    return new StepRecording(this.#steps, state, moment(at, "at"));
  }

  /** A step as a block: one that is left without an action, or by an error, is recorded as pending. */
  async decide<T>(state: EnvironmentState, block: (step: StepRecording) => Promise<T> | T): Promise<T> {
    const step = this.step(state);
    let error = "the step was left without an action";
    try {
      return await block(step);
    } catch (thrown) {
      error = sentence(thrown);
      throw thrown;
    } finally {
      if (!step.isComplete) step.completeStep({ actionType: "pending", success: false, error });
    }
  }

  /**
   * Finish and store; returns the trajectory id. After that, not even `kill -9` loses the row. After an error of the
   * disk it may be called again.
   */
  async endTrajectory(options: EndOptions = {}): Promise<string> {
    if (this.#hasEnded) throw new Error(`Trajectory ${this.trajectoryId} has already ended.`);
    const row = this.#row(options);
    this.#hasEnded = true; // before waiting: of two calls at once only one stores
    try {
      await this.store(row);
    } catch (error) {
      this.#hasEnded = false;
      throw error;
    }
    return this.trajectoryId;
  }

  #row({ finalBalance, finalPnL, gameKnowledge = {}, at = new Date() }: EndOptions): Row {
    const { isTrainingData = true, isEvaluation = false, scenarioId } = this.options;
    return {
      trajectoryId: this.trajectoryId,
      agentId: this.agentId,
      startTime: this.#startedAt.toISOString(),
      endTime: moment(at, "at").toISOString(),
      stepsJson: JSON.stringify(this.#steps),
      metadataJson: JSON.stringify({ isTrainingData, gameKnowledge: copied(gameKnowledge, "gameKnowledge") }),
      ...(scenarioId === undefined ? {} : { scenarioId }),
      ...(finalBalance === undefined ? {} : { finalBalance: figure(finalBalance, "finalBalance") }),
      ...(finalPnL === undefined ? {} : { finalPnL: figure(finalPnL, "finalPnL") }),
      totalReward: this.#steps.reduce((sum, step) => sum + step.reward, 0),
      isTrainingData,
      isEvaluation,
    };
  }
}

/** `value` as it is now. TypeError if it is not JSON, where the agent's author sees it: delivery is later, elsewhere. */
function copied<T extends object>(value: T, name: string): T {
  const text = JSON.stringify(value) as string | undefined; // throws for a BigInt or a circle
  if (text === undefined || !text.startsWith("{")) throw new TypeError(`${name} must be an object that JSON can hold.`);
  return JSON.parse(text) as T;
}

function figure(value: number, name: string): number {
  if (!Number.isFinite(value)) throw new TypeError(`${name} must be a finite number, not ${String(value)}.`);
  return value;
}

function moment(at: Date, name: string): Date {
  if (Number.isNaN(at.getTime())) throw new TypeError(`${name} must be a valid Date.`);
  return at;
}

function refuseOtherNames(name: string, value: unknown): void {
  if (typeof value !== "string" || !/^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}$/.test(value)) {
    throw new TypeError(`${name} must have 1 to 100 letters, digits and ._:@/- and begin with a letter or digit.`);
  }
}

function lastText(messages: readonly ChatMessage[] | undefined, role: string): string {
  return messages?.findLast((message) => message.role === role)?.content ?? "";
}
