import type { BodyOf, Operation } from "./connection.js";
import type { Console } from "./console.js";
import type { paths } from "./generated/console.js";

export type Question = BodyOf<Operation<paths, "/advice", "post">>;
export type Outcome = BodyOf<Operation<paths, "/advice/{advice_id}/outcome", "post">>;

/** What the promoted release would do. */
export class Advice {
  constructor(private readonly console: Console) {}

  /** A proposal, or an abstention with its reason. The same question in the same hour has the same answer. */
  ask(question: Question) {
    return this.console.call("post", "/advice", { body: question, repeatable: true });
  }

  /** Say what came of a proposal. An agent may say what it did; what was right, only the game. */
  outcome(adviceId: string, outcome: Outcome) {
    const parts = { advice_id: adviceId };
    return this.console.call("post", "/advice/{advice_id}/outcome", { parts, body: outcome, repeatable: true });
  }
}
