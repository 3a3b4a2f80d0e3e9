import type { AnswerOf, BodyOf, Operation, QueryOf } from "./connection.js";
import type { Console } from "./console.js";
import type { paths } from "./generated/console.js";

type History = Operation<paths, "/rewards/history", "get">;
export type ToJudge = BodyOf<Operation<paths, "/rewards/calculate", "post">>;
export type RewardQuery = QueryOf<History>;
export type RewardEntry = AnswerOf<History>["entries"][number];

const JUDGE_MS = 300_000;

/** Rewards: one on demand by the trainings' own judge, and the history of those that were trained. */
export class Rewards {
  constructor(private readonly console: Console) {}

  /** Have one trajectory, or one result of a task, judged now. It may cost money: give `max_cost`. */
  calculate(toJudge: ToJudge) {
    return this.console.call("post", "/rewards/calculate", { body: toJudge, timeoutMs: JUDGE_MS });
  }

  /** One page, the latest first. */
  history(query: RewardQuery = {}) {
    return this.console.call("get", "/rewards/history", { query });
  }

  /** All of it, page by page as it is read. */
  async *all(query: Omit<RewardQuery, "cursor"> = {}): AsyncGenerator<RewardEntry, void, undefined> {
    let cursor: string | null | undefined;
    do {
      const page = await this.history({ ...query, cursor: cursor ?? null });
      yield* page.entries;
      cursor = page.next;
    } while (cursor);
  }
}
