import { randomUUID } from "node:crypto";

import type { AnswerOf, BodyOf, Operation } from "./connection.js";
import type { Console } from "./console.js";
import type { paths } from "./generated/console.js";

export type StartTraining = BodyOf<Operation<paths, "/training/start", "post">>;
export type TrainingStatus = AnswerOf<Operation<paths, "/training/status", "get">>;

/** Trainings: started and stopped through the ledger, from any host on any host. */
export class Training {
  constructor(private readonly console: Console) {}

  /**
   * Ask any idle host to train. The same `idempotencyKey` is the same training, however often it is sent; without one
   * a new one is made, so that a repetition by this call itself starts nothing twice.
   */
  start(training: StartTraining = {}, idempotencyKey: string = randomUUID()) {
    const headers = { "Idempotency-Key": idempotencyKey };
    return this.console.call("post", "/training/start", { body: training, headers, repeatable: true });
  }

  /** Ask whoever trains the model to stop after the step in hand; the next start resumes. */
  stop(reason = "", model?: string) {
    return this.console.call("post", "/training/stop", { body: { reason, model: model ?? null } });
  }

  status(model?: string) {
    return this.console.call("get", "/training/status", { query: { model: model ?? null } });
  }
}
