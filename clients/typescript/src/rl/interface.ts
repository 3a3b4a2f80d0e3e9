import { randomUUID } from "node:crypto";

import { Connection } from "../connection.js";
import type { paths } from "../generated/prompts.js";
import { type ServerOptions, ServerProcess } from "./server-process.js";
import {
  type Distribution,
  type Experience,
  type Loaded,
  type Mask,
  MUTATIONS,
  type Mutation,
  maskOf,
  type Saved,
  type SelectedAction,
  type State,
  type Stats,
  type StoredExperience,
  type Update,
} from "./service.js";

export interface RLOptions {
  /** A service that runs already, with its key: `prompts.py serve`, or a console's `/api/v1/prompts/policy`. */
  url?: string;
  key?: string;
  /** How `startServer` starts one of our own. */
  server?: ServerOptions;
  /** How long one call may take. Default: 30,000; an update may take ten times as long. */
  timeoutMs?: number;
}

/** A decision of the policy about a prompt. */
export interface SelectedMutation extends SelectedAction {
  mutation: Mutation;
}

/** Where the policy learns: prompts, and what a mutation of one was worth. */
export interface Environment {
  /** The prompt that an episode begins with. */
  reset(): Promise<State> | State;
  /** Apply a mutation: the prompt after it, and the judged score of that minus its parent's. */
  apply(mutation: Mutation, state: State): Promise<Applied> | Applied;
}

export interface Applied {
  state: State;
  reward: number;
  /** Whether the episode ends here; it also ends with `keep`, and after five mutations. */
  done: boolean;
}

export interface Episode {
  id: string;
  mutations: Mutation[];
  rewards: number[];
  totalReward: number;
  /** Whether the policy changed while the episode ran: its older steps are kept, counted, and not trained on. */
  stale: number;
  /** How many experiences are still missing before the policy can be updated. */
  needed: number;
}

/** Mutations of one episode, at most. */
export const LONGEST_EPISODE = 5;
const UPDATES_TAKE = 10;

/** The policy that learns which change to a prompt helps. */
export class RLInterface {
  readonly #options: RLOptions;
  #connection: Connection<paths> | null = null;
  #process: Promise<ServerProcess> | null = null;

  constructor(options: RLOptions) {
    this.#options = options;
    if (options.url !== undefined) this.#connect(options.url, options.key);
    else if (options.server === undefined) throw new TypeError("Give the url of a service, or `server` to start one.");
  }

  /** Start a service of our own; returns its address when it answers. Nothing happens if one is known already. */
  async startServer(): Promise<string> {
    if (this.#options.server === undefined) {
      await this.health();
      return this.#options.url ?? "";
    }
    this.#process ??= ServerProcess.start(this.#options.server); // one, however many call at once
    const started = this.#process;
    try {
      const { url, key } = await started;
      if (this.#process === started) this.#connect(url, key); // nobody stopped it meanwhile
      return url;
    } catch (error) {
      if (this.#process === started) this.#process = null;
      throw error;
    }
  }

  /** Stop the service that we started; one that ran before is left alone. */
  async stopServer(): Promise<void> {
    const started = this.#process;
    if (started === null) return;
    this.#process = null;
    this.#connection = null;
    const running = await started.catch(() => null); // whoever called startServer hears of it
    await running?.stop();
  }

  /** HindsightError if the service does not answer. */
  async health(): Promise<void> {
    await this.#service.send("get", "/health", {}); // the one call that needs no key and is in no document
  }

  stats(): Promise<Stats> {
    return this.#service.call("get", "/stats");
  }

  /** What the policy does in this state: sampled, or the likeliest if `deterministic`. */
  selectAction(state: State, options: { deterministic?: boolean; seed?: number } = {}): Promise<SelectedAction> {
    return this.#service.call("post", "/select_action", { body: { ...asked(state), ...options }, repeatable: true });
  }

  /** The same for a prompt, with the mutation by its name. */
  async selectMutation(
    prompt: string,
    options: { deterministic?: boolean; seed?: number } = {},
  ): Promise<SelectedMutation> {
    const selected = await this.selectAction({ prompt }, options);
    return { ...selected, mutation: mutationAt(selected.action) };
  }

  getDistribution(state: State): Promise<Distribution> {
    return this.#service.call("post", "/get_distribution", { body: asked(state), repeatable: true });
  }

  /** Hand over what a decision was worth. The same `experience_id` twice is stored once, so it can be repeated. */
  storeExperience(experience: Experience): Promise<StoredExperience> {
    const body = { ...experience, experience_id: experience.experience_id ?? randomUUID() };
    return this.#service.call("post", "/store_experience", { body, repeatable: true });
  }

  /** Update the policy if enough experience waits; `state` says whether it was. */
  update(options: { wait?: boolean } = {}): Promise<Update> {
    const timeoutMs = UPDATES_TAKE * (this.#options.timeoutMs ?? 30_000);
    return this.#service.call("post", "/update", { body: options, timeoutMs });
  }

  /** Keep the policy under a name in the ledger. */
  saveCheckpoint(name: string): Promise<Saved> {
    return this.#service.call("post", "/save", { body: { name } });
  }

  /** Go on from a policy that was kept. It becomes a new version, so that versions only grow. */
  loadCheckpoint(name: string): Promise<Loaded> {
    return this.#service.call("post", "/load", { body: { name } });
  }

  /**
   * One episode of up to five mutations. Its experience is handed over when it is complete: an episode that fails leaves
   * nothing behind.
   */
  async trainEpisode(environment: Environment): Promise<Episode> {
    const id = randomUUID();
    const taken: { selected: SelectedAction; state: State; reward: number; done: boolean }[] = [];
    let state = await environment.reset();
    for (let done = false; !done; ) {
      const selected = await this.selectAction(state);
      const mutation = mutationAt(selected.action);
      const applied = await environment.apply(mutation, state);
      done = applied.done || mutation === "keep" || taken.length + 1 === LONGEST_EPISODE;
      taken.push({ selected, state, reward: applied.reward, done });
      state = applied.state;
    }
    let needed = 0;
    let stale = 0;
    for (const [step, { selected, state: before, reward, done }] of taken.entries()) {
      const stored = await this.storeExperience({
        embedding: embeddingOf(before, selected),
        action_mask: maskOf(selected.action_mask),
        action: selected.action,
        version: selected.version,
        experience_id: `${id}:${step}`,
        episode: id,
        step,
        reward,
        done,
      });
      needed = stored.needed;
      if (!stored.usable) stale += 1;
    }
    const rewards = taken.map((one) => one.reward);
    const totalReward = rewards.reduce((sum, reward) => sum + reward, 0);
    const mutations = taken.map((one) => mutationAt(one.selected.action));
    return { id, mutations, rewards, totalReward, stale, needed };
  }

  get #service(): Connection<paths> {
    if (this.#connection === null) throw new Error("The prompts service is not running: call startServer first.");
    return this.#connection;
  }

  #connect(url: string, key: string | undefined): void {
    this.#connection = new Connection<paths>({ url, key, timeoutMs: this.#options.timeoutMs });
  }
}

function asked(state: State): ({ prompt: string } | { embedding: number[] }) & { action_mask?: Mask } {
  const mask = state.action_mask === undefined ? {} : { action_mask: maskOf(state.action_mask) };
  return "prompt" in state ? { prompt: state.prompt, ...mask } : { embedding: [...state.embedding], ...mask };
}

function mutationAt(action: number): Mutation {
  const mutation = MUTATIONS[action];
  if (mutation === undefined) throw new RangeError(`The service chose ${action}, which this client does not know.`);
  return mutation;
}

function embeddingOf(state: State, selected: SelectedAction): number[] {
  if ("embedding" in state) return [...state.embedding];
  if (!selected.embedding) throw new Error("The service gave no embedding for a prompt.");
  return selected.embedding;
}
