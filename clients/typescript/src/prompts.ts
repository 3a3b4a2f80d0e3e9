import type { AnswerOf, Operation } from "./connection.js";
import type { Console } from "./console.js";
import { HindsightError } from "./errors.js";
import type { paths } from "./generated/console.js";
import type { Message } from "./lesson-prompts.js";

/** The prompt that an agent of a role is to use now; with an empty `prompt_id`, the game's own. */
export type CurrentPrompt = AnswerOf<Operation<paths, "/prompts/current", "get">>;

export interface PromptsOptions {
  /** For how long a prompt is believed. Default: 60,000. */
  refreshMs?: number;
  /** What a decision may wait for its prompt. Default: 500. */
  timeoutMs?: number;
}

/** Prompts: which one an agent of a role was given, by the release that it was given. */
export class Prompts {
  /** Decisions for which the server did not answer: they used the prompt known before, or the game's own. */
  missed = 0;
  readonly #known = new Map<string, { until: number; prompt: CurrentPrompt | null }>();

  constructor(
    private readonly console: Console,
    private readonly options: PromptsOptions = {},
  ) {}

  /** Ask now. HindsightError if there is no answer. */
  current(agentId: string, role = ""): Promise<CurrentPrompt> {
    return this.#ask(agentId, role, undefined);
  }

  /**
   * The prompt for a decision, asked for once a minute; null if the game's own is to be used. A server that is away is
   * never a reason to miss a decision: then the prompt known before stays.
   */
  async forDecision(agentId: string, role = ""): Promise<CurrentPrompt | null> {
    const name = JSON.stringify([agentId, role]);
    const known = this.#known.get(name);
    if (known !== undefined && known.until > performance.now()) return known.prompt;
    let prompt = known?.prompt ?? null;
    try {
      const found = await this.#ask(agentId, role, this.options.timeoutMs ?? 500);
      prompt = found.prompt_id === "" ? null : found;
    } catch (error) {
      if (!(error instanceof HindsightError)) throw error;
      this.missed += 1;
    }
    this.#known.set(name, { until: performance.now() + (this.options.refreshMs ?? 60_000), prompt });
    return prompt;
  }

  async #ask(agentId: string, role: string, timeoutMs: number | undefined): Promise<CurrentPrompt> {
    const query = { agent_id: agentId, role };
    return await this.console.call("get", "/prompts/current", {
      query,
      timeoutMs,
      repeatable: timeoutMs === undefined,
    });
  }
}

/**
 * The beginning of a conversation, as the server finds it again in the log: the system text with the game's values, then
 * the examples as turns. A variable without a value stays as it is.
 */
export function promptMessages(prompt: CurrentPrompt, values: Readonly<Record<string, string>> = {}): Message[] {
  const system = (prompt.system ?? "").replace(/\{([a-z][a-z0-9_]{0,40})\}/g, (mark, name: string) =>
    Object.hasOwn(values, name) ? (values[name] ?? mark) : mark,
  );
  const turns = prompt.examples.flatMap(({ user, assistant }): Message[] => [
    { role: "user", content: user },
    { role: "assistant", content: assistant },
  ]);
  return system === "" ? turns : [{ role: "system", content: system }, ...turns];
}
