import type { BodyOf, Operation, QueryOf } from "./connection.js";
import type { Console } from "./console.js";
import type { paths } from "./generated/console.js";
import { type LessonsPolicy, type Message, policyNamed, withLessons } from "./lesson-prompts.js";

type Of<Path extends keyof paths, M extends "get" | "post"> = Operation<paths, Path, M>;
export type StoreLesson = BodyOf<Of<"/memory/store", "post">>;
export type RetrieveLessons = BodyOf<Of<"/memory/retrieve", "post">>;

/** Who decides, and when in the game's clock: no lesson that was learnt later is shown. */
export interface Decider {
  agentId: string;
  asOf: Date;
  role?: string;
}

export interface ShownLesson {
  id: string;
  text: string;
}

export interface LessonsOptions {
  /** A policy of one's own, for trials; otherwise each agent has that of the release it was given. */
  policy?: string;
  /** What a decision may wait for its lessons. Default: 500. */
  timeoutMs?: number;
  /** For how long a promoted policy is believed. Default: 60,000. */
  refreshMs?: number;
}

const LONGEST_CONTEXT = 4_000; // characters; the end is what an agent sees last

/** Lessons: what verdicts taught, looked up when an agent decides. */
export class Lessons {
  /** Decisions that asked for lessons, and those that had to do without because there was no answer. */
  asked = 0;
  missed = 0;
  readonly #policies = new Map<string, { until: number; policy: LessonsPolicy | null }>();

  constructor(
    private readonly console: Console,
    private readonly options: LessonsOptions = {},
  ) {}

  /** Keep a lesson from outside; no agent is shown it before it is gated. The same words twice are one lesson. */
  store(lesson: StoreLesson) {
    return this.console.call("post", "/memory/store", { body: lesson, repeatable: true });
  }

  retrieve(question: RetrieveLessons) {
    return this.console.call("post", "/memory/retrieve", { body: question, repeatable: true });
  }

  /** Which lessons an agent is to be shown, by the release that it was given. */
  policy(agentId: string) {
    const query: QueryOf<Of<"/memory/policy", "get">> = { agent_id: agentId };
    return this.console.call("get", "/memory/policy", { query });
  }

  consolidate(whole = false) {
    return this.console.call("post", "/memory/consolidate", { body: { whole } });
  }

  /**
   * `messages` with the lessons for their decision, as the trainer expects them in a prompt, and which they are.
   * Looking up is never a reason to miss a decision: without an answer in time there are none, which `missed` counts.
   */
  async put(messages: readonly Message[], decider: Decider): Promise<{ messages: Message[]; shown: ShownLesson[] }> {
    const asked = messages.findLast((message) => message.role === "user")?.content ?? "";
    const context = asked.replaceAll("\0", " ").slice(-LONGEST_CONTEXT);
    const nothing = { messages: [...messages], shown: [] };
    if (context.trim() === "") return nothing;
    this.asked += 1;
    try {
      const policy = await this.#policyOf(decider.agentId);
      if (policy === null) return nothing;
      const shown = await this.#find(context, decider, policy);
      const texts = shown.map((lesson) => lesson.text);
      return { messages: withLessons(messages, texts, policy.wording), shown };
    } catch {
      this.missed += 1;
      return nothing;
    }
  }

  async #find(context: string, decider: Decider, policy: LessonsPolicy): Promise<ShownLesson[]> {
    const { items } = await this.console.call("post", "/memory/retrieve", {
      body: {
        context,
        k: policy.number,
        memory_types: [...policy.kinds],
        agent_id: decider.agentId,
        as_of: decider.asOf.toISOString(),
        role: decider.role ?? null,
      },
      timeoutMs: this.#timeoutMs,
    });
    return items.slice(0, policy.number).map((item) => ({ id: item.id, text: `${item.title}: ${item.content}` }));
  }

  async #policyOf(agentId: string): Promise<LessonsPolicy | null> {
    if (this.options.policy !== undefined) return policyNamed(this.options.policy);
    const known = this.#policies.get(agentId);
    if (known !== undefined && known.until > performance.now()) return known.policy;
    const { lessons_policy: name } = await this.console.call("get", "/memory/policy", {
      query: { agent_id: agentId },
      timeoutMs: this.#timeoutMs,
      repeatable: false,
    });
    const policy = policyNamed(name);
    this.#policies.set(agentId, { until: performance.now() + (this.options.refreshMs ?? 60_000), policy });
    return policy;
  }

  get #timeoutMs(): number {
    return this.options.timeoutMs ?? 500;
  }
}
