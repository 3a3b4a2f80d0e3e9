/**
 * A stand-in for the prompts service, for tests and for the demo where Python is absent: the same eight calls over
 * HTTP with the same key, errors, versions and buffer, but a table of preferences in the place of PPO. It learns one
 * preference for each mutation and knows no prompt from another, and its "losses" are not those of a network.
 */
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";

import { MUTATIONS } from "./src/rl/service.js";

const DIMENSIONS = 1536;
const LEARNING_RATE = 0.5;

interface Kept {
  id: string;
  action: number;
  reward: number;
  version: number;
}

interface Sent {
  embedding?: number[];
  prompt?: string;
  action_mask?: boolean[];
  deterministic?: boolean;
  seed?: number | null;
  action?: number;
  reward?: number;
  version?: number;
  experience_id?: string;
  name?: string;
}

class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null = null,
  ) {
    super(message);
  }
}

/** The answer to a call: its status and what it says. */
type Answer = [status: number, said: object];

export class SimulatedPolicy {
  readonly key = "the-key-of-the-simulated-policy";
  readonly #server: Server = createServer((request, answer) => {
    void this.#answer(request).then(([status, said]) => {
      answer.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(said));
    });
  });
  readonly #saved = new Map<string, { version: number; preferences: number[] }>();
  #preferences: number[] = MUTATIONS.map(() => 0);
  #experience: Kept[] = [];
  #waiting: Kept[] = [];
  #version = 1;
  #updates = 0;
  #losses: object | null = null;

  /** `buffer` experiences make an update; `random` says which way the dice fall. */
  constructor(
    private readonly buffer = 64,
    private readonly random: () => number = Math.random,
  ) {}

  async open(): Promise<string> {
    await new Promise<void>((listening) => this.#server.listen(0, "127.0.0.1", listening));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((closed) => this.#server.close(closed));
  }

  async #answer(request: IncomingMessage): Promise<Answer> {
    try {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      const call = `${request.method ?? ""} ${request.url ?? ""}`;
      if (call !== "GET /health" && request.headers.authorization !== `Bearer ${this.key}`) {
        throw new Refused(401, "no_key", "The key is wrong.");
      }
      return this.#called(call, parts.length === 0 ? {} : (JSON.parse(Buffer.concat(parts).toString()) as Sent));
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(400, "not_json", "The body is not JSON.");
      return [refused.status, { error: { code: refused.code, message: refused.message, field: refused.field } }];
    }
  }

  #called(call: string, sent: Sent): Answer {
    switch (call) {
      case "GET /health":
        return [200, { status: "ok" }];
      case "GET /stats":
        return [200, this.#stats()];
      case "POST /select_action":
        return [200, this.#selected(sent)];
      case "POST /get_distribution":
        return [200, this.#distribution(sent)];
      case "POST /store_experience":
        return this.#stored(sent);
      case "POST /update":
        return this.#updated();
      case "POST /save":
        return this.#save(sent.name ?? "");
      case "POST /load":
        return this.#load(sent.name ?? "");
      default:
        throw new Refused(404, "not_found", "Not Found.");
    }
  }

  #state(sent: Sent): { mask: boolean[]; probabilities: number[]; embedding: number[] | null } {
    if ((sent.prompt === undefined) === (sent.embedding === undefined)) {
      throw new Refused(422, "invalid", "Give an embedding or a prompt.", "embedding");
    }
    if (sent.embedding !== undefined) checkEmbedding(sent.embedding);
    const mask = sent.action_mask ?? MUTATIONS.map(() => true);
    const weights = this.#preferences.map((one, action) => (mask[action] ? Math.exp(one) : 0));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const probabilities = weights.map((weight) => weight / total);
    return { mask, probabilities, embedding: sent.prompt === undefined ? null : embedded(sent.prompt) };
  }

  #selected(sent: Sent): object {
    const { mask, probabilities, embedding } = this.#state(sent);
    const action = sent.deterministic ? probabilities.indexOf(Math.max(...probabilities)) : this.#drawn(probabilities);
    const log_prob = Math.log(probabilities[action] ?? 0);
    const named = { action, name: MUTATIONS[action], log_prob, value: 0 };
    return { ...named, probabilities, action_mask: mask, version: this.#version, embedding };
  }

  #drawn(probabilities: readonly number[]): number {
    let left = this.random();
    for (const [action, probability] of probabilities.entries()) {
      left -= probability;
      if (left < 0) return action;
    }
    return probabilities.findLastIndex((probability) => probability > 0);
  }

  #distribution(sent: Sent): object {
    const { mask, probabilities, embedding } = this.#state(sent);
    const entropy = -probabilities.reduce((sum, one) => sum + (one > 0 ? one * Math.log(one) : 0), 0);
    return { probabilities, names: MUTATIONS, entropy, value: 0, action_mask: mask, version: this.#version, embedding };
  }

  #stored(sent: Sent): Answer {
    checkEmbedding(sent.embedding ?? []);
    const { action = -1, reward = Number.NaN, version = 0, experience_id: id = String(this.#experience.length) } = sent;
    if (MUTATIONS[action] === undefined) throw new Refused(422, "invalid", "action: there is no such one.", "action");
    if (!Number.isFinite(reward)) throw new Refused(422, "invalid", "reward: give a number.", "reward");
    if (version < 1 || version > this.#version)
      throw new Refused(404, "not_found", "version: it never was.", "version");
    const isNew = !this.#experience.some((one) => one.id === id);
    const usable = version === this.#version;
    if (isNew) {
      const kept = { id, action, reward, version };
      this.#experience.push(kept);
      if (usable) this.#waiting.push(kept);
    }
    const buffer = { waiting: this.#waiting.length, needed: this.#needed, version: this.#version };
    return [isNew ? 201 : 200, { experience_id: id, stored: isNew, usable, ...buffer }];
  }

  get #needed(): number {
    return Math.max(0, this.buffer - this.#waiting.length);
  }

  /** A step of the gradient bandit: what did better than the mean becomes likelier. */
  #updated(): Answer {
    const buffer = (): object => ({ version: this.#version, waiting: this.#waiting.length, needed: this.#needed });
    if (this.#needed > 0) return [202, { state: "filling", ...buffer(), losses: null }];
    const used = this.#waiting;
    const baseline = used.reduce((sum, one) => sum + one.reward, 0) / used.length;
    for (const one of used) {
      const before = this.#preferences[one.action] ?? 0;
      this.#preferences[one.action] = before + LEARNING_RATE * (one.reward - baseline);
    }
    this.#newVersion();
    this.#updates += 1;
    this.#losses = {
      version: this.#version,
      experience: used.length,
      policy_loss: 0,
      value_loss: 0,
      entropy: 0,
      approx_kl: 0,
      clip_share: 0,
      explained_variance: null,
      learning_rate: LEARNING_RATE,
    };
    return [200, { state: "updated", ...buffer(), losses: this.#losses }];
  }

  #newVersion(): void {
    this.#version += 1;
    this.#waiting = [];
  }

  #save(name: string): Answer {
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name))
      throw new Refused(422, "invalid", "name: use letters.", "name");
    const known = this.#saved.get(name);
    if (known !== undefined && known.version !== this.#version) throw new Refused(409, "conflict", `${name} is taken.`);
    this.#saved.set(name, { version: this.#version, preferences: [...this.#preferences] });
    return [known === undefined ? 201 : 200, { name, version: this.#version, sha256: digest(this.#preferences) }];
  }

  #load(name: string): Answer {
    const found = this.#saved.get(name);
    if (found === undefined) throw new Refused(404, "not_found", `There is no checkpoint ${name}.`);
    this.#preferences = [...found.preferences];
    this.#newVersion();
    const sha256 = digest(found.preferences);
    return [200, { name, version: this.#version, from_version: found.version, sha256 }];
  }

  #stats(): object {
    const received = this.#experience.length;
    const counted = MUTATIONS.map((name, action) => [
      name,
      this.#experience.filter((one) => one.action === action).length,
    ]);
    const current = this.#experience.filter((one) => one.version === this.#version).length;
    const trained = this.#updates * this.buffer;
    const rewards = this.#experience.reduce((sum, one) => sum + one.reward, 0);
    return {
      version: this.#version,
      parent: this.#version === 1 ? null : this.#version - 1,
      updates: this.#updates,
      dimensions: DIMENSIONS,
      actions: MUTATIONS,
      buffer: { size: this.buffer, waiting: this.#waiting.length, needed: this.#needed },
      experience: { received, trained, waiting: current, stale: received - trained - current },
      action_counts: Object.fromEntries(counted) as Record<string, number>,
      mean_reward: received === 0 ? null : rewards / received,
      saved: [...this.#saved.keys()].reverse(),
      last_update: this.#losses,
    };
  }
}

function checkEmbedding(embedding: readonly number[]): void {
  if (embedding.length !== DIMENSIONS || !embedding.every(Number.isFinite)) {
    throw new Refused(422, "invalid", `embedding: give ${DIMENSIONS} numbers.`, "embedding");
  }
}

/** Not an embedding of the meaning: only the same numbers for the same prompt. */
function embedded(prompt: string): number[] {
  const bytes = createHash("shake256", { outputLength: DIMENSIONS }).update(prompt).digest();
  return Array.from(bytes, (byte) => byte / 255 - 0.5);
}

function digest(value: unknown): string {
  return createHash("sha256").update(JSON.stringify(value)).digest("hex");
}
