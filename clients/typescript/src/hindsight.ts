import { Advice } from "./advice.js";
import { Connection, type ConnectionOptions } from "./connection.js";
import { API, type Console } from "./console.js";
import type { paths } from "./generated/console.js";
import { Lessons, type LessonsOptions } from "./lessons.js";
import { Prompts, type PromptsOptions } from "./prompts.js";
import { Recorder, type RecorderOptions } from "./recorder/recorder.js";
import { Rewards } from "./rewards.js";
import { Training } from "./training.js";

export interface HindsightOptions extends ConnectionOptions {
  lessons?: LessonsOptions;
  prompts?: PromptsOptions;
}

/**
 * Hindsight's console, as `python scripts/console.py` serves it. Bodies and answers have the API's own names; their
 * types are generated from its OpenAPI document.
 */
export class Hindsight {
  readonly lessons: Lessons;
  readonly prompts: Prompts;
  readonly advice: Advice;
  readonly rewards: Rewards;
  readonly training: Training;
  /** Every other call of the API, typed: `console.call("get", "/releases")`. */
  readonly console: Console;

  constructor(options: HindsightOptions) {
    this.console = new Connection<paths>(options, API);
    this.lessons = new Lessons(this.console, options.lessons);
    this.prompts = new Prompts(this.console, options.prompts);
    this.advice = new Advice(this.console);
    this.rewards = new Rewards(this.console);
    this.training = new Training(this.console);
  }

  /** A recorder of trajectories; close it at the end. */
  recorder(options: RecorderOptions): Promise<Recorder> {
    return Recorder.open(this.console, options);
  }
}
