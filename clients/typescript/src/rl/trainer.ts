import type { Environment, Episode, RLInterface } from "./interface.js";
import { MUTATIONS, type Mutation, type Update } from "./service.js";

export interface TrainerOptions {
  /** Told of every episode. */
  onEpisode?: (episode: Episode, statistics: Statistics) => void;
  /** Told of every update of the policy. */
  onUpdate?: (update: Update) => void;
}

/** What a trainer has seen since it started. */
export interface Statistics {
  episodes: number;
  steps: number;
  updates: number;
  /** Experience of a version that was replaced while its episode ran. */
  stale: number;
  /** Of whole episodes; null before the first. */
  meanReward: number | null;
  /** Of the last hundred episodes. */
  recentReward: number | null;
  mutations: Record<Mutation, number>;
  lastUpdate: Update | null;
}

const RECENT = 100;

/** Lets the policy play episodes in an environment, and updates it whenever there is enough experience. */
export class RLTrainer {
  readonly #rl: RLInterface;
  readonly #environment: Environment;
  readonly #options: TrainerOptions;
  #totals: number[] = [];
  #counts = noneOfEach();
  #steps = 0;
  #stale = 0;
  #updates = 0;
  #lastUpdate: Update | null = null;
  #isRunning = false;
  #isTraining: Promise<unknown> = Promise.resolve();

  constructor(rl: RLInterface, environment: Environment, options: TrainerOptions = {}) {
    this.#rl = rl;
    this.#environment = environment;
    this.#options = options;
  }

  /** Start the service if it is ours to start, or make sure that it answers. */
  async start(): Promise<void> {
    await this.#rl.startServer();
    this.#isRunning = true;
  }

  /** Play `episodes`, or fewer if `stop` is called meanwhile. */
  async train(episodes: number): Promise<Statistics> {
    if (!this.#isRunning) throw new Error("The trainer is not running: call start first.");
    const playing = this.#play(episodes);
    this.#isTraining = playing.catch(() => undefined); // whoever called train hears of it
    await playing;
    return this.statistics();
  }

  /** Finish the episode in hand, and stop the service if we started it. */
  async stop(): Promise<void> {
    this.#isRunning = false;
    await this.#isTraining;
    await this.#rl.stopServer();
  }

  statistics(): Statistics {
    return {
      episodes: this.#totals.length,
      steps: this.#steps,
      updates: this.#updates,
      stale: this.#stale,
      meanReward: mean(this.#totals),
      recentReward: mean(this.#totals.slice(-RECENT)),
      mutations: { ...this.#counts },
      lastUpdate: this.#lastUpdate,
    };
  }

  async #play(episodes: number): Promise<void> {
    for (let played = 0; played < episodes && this.#isRunning; played += 1) {
      const episode = await this.#rl.trainEpisode(this.#environment);
      this.#count(episode);
      this.#options.onEpisode?.(episode, this.statistics());
      if (episode.needed === 0) await this.#update();
    }
  }

  async #update(): Promise<void> {
    const update = await this.#rl.update();
    if (update.state !== "updated") return; // another client was quicker
    this.#updates += 1;
    this.#lastUpdate = update;
    this.#options.onUpdate?.(update);
  }

  #count(episode: Episode): void {
    this.#totals.push(episode.totalReward);
    this.#steps += episode.rewards.length;
    this.#stale += episode.stale;
    for (const mutation of episode.mutations) this.#counts[mutation] += 1;
  }
}

function noneOfEach(): Record<Mutation, number> {
  return Object.fromEntries(MUTATIONS.map((mutation) => [mutation, 0])) as Record<Mutation, number>;
}

function mean(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}
