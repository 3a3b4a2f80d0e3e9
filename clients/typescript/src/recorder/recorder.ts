import { open } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

import { type Connection, isPassing, notHindsight } from "../connection.js";
import { HindsightError, sentence } from "../errors.js";
import { type Row, type StartOptions, TrajectoryRecording } from "./recording.js";
import { Spool } from "./spool.js";

const BATCH_ROWS = 250;
const BATCH_BYTES = 4 * 2 ** 20; // the server takes 16 MB; one row more may have 5 MB of steps
const LOOK_FOR_ORPHANS_MS = 5_000;
const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5_000;
const KEY_PAUSE_MS = 30_000; // ten wrong keys a minute lock an address out

export interface RecorderOptions {
  /** A folder on a local disk. Recorders and processes may share it; a living one delivers the rows of a dead one. */
  spool: string;
  /** How long `close` waits for the server; after that the rows stay in the spool. Default: 30,000. */
  patienceMs?: number;
  /** Told in one sentence why rows wait or were refused. Default: `console.warn`. */
  onProblem?: (message: string) => void;
}

interface Result {
  agent_id: string;
  window_id: string | null;
  state: string;
  reason?: string;
}

/**
 * Records the trajectories of any number of agents, as the game's own recorder does; agents never wait for the server.
 *
 * `endTrajectory` returns when the row is on disk, in the spool. In the background, rows are sent in batches and in
 * order; while the server is away they stay in the spool, also across a restart. The server stores a trajectory id
 * once, so a repetition is harmless and every row arrives exactly once. A row that is refused is kept in
 * `rejected.jsonl` with the reason, for `traces.py import`, and delays no other.
 */
export class Recorder {
  /** Trajectories that the server has by this recorder. */
  delivered = 0;
  /** Trajectories that were refused; each is in `rejected.jsonl`. */
  rejected = 0;
  readonly #patienceMs: number;
  readonly #onProblem: (message: string) => void;
  readonly #delivering: Promise<void>;
  readonly #stopping = new AbortController();
  #fault: HindsightError | null = null;
  #wake: () => void = () => {};
  #waiters: (() => void)[] = [];

  private constructor(
    private readonly connection: Pick<Connection<never>, "send">,
    private readonly spool: Spool,
    options: RecorderOptions,
  ) {
    this.#patienceMs = options.patienceMs ?? 30_000;
    this.#onProblem = options.onProblem ?? ((message) => console.warn(message));
    spool.onArrival = () => this.#wake();
    this.#delivering = this.#deliverForEver();
  }

  static async open(connection: Pick<Connection<never>, "send">, options: RecorderOptions): Promise<Recorder> {
    const spool = await Spool.open(options.spool);
    await spool.adopt(); // before our own first row, so that the order is kept
    return new Recorder(connection, spool, options);
  }

  /** Begin a trajectory; with an agent's key of that agent, with a team's of one of the team. */
  startTrajectory(agentId: string, options: StartOptions = {}): TrajectoryRecording {
    return new TrajectoryRecording((row) => this.spool.append(JSON.stringify(row)), agentId, options);
  }

  /** A trajectory as a block, which ends it, also after an error. */
  async record<T>(
    agentId: string,
    block: (trajectory: TrajectoryRecording) => Promise<T> | T,
    options: StartOptions = {},
  ): Promise<T> {
    const trajectory = this.startTrajectory(agentId, options);
    try {
      return await block(trajectory);
    } finally {
      if (!trajectory.hasEnded) await trajectory.endTrajectory();
    }
  }

  /** Returns when every trajectory that has ended is delivered or refused. HindsightError if that takes too long. */
  async flush(timeoutMs: number): Promise<void> {
    const [before, target] = [this.spool.finished, this.spool.appended];
    const isDone = (): boolean => this.spool.isEmpty || (before < target && target <= this.spool.finished);
    const until = Date.now() + timeoutMs;
    while (!isDone()) {
      const left = until - Date.now();
      if (left <= 0) {
        const why = this.#fault === null ? "." : `: ${this.#fault.message}`;
        throw new HindsightError(`Trajectories still wait in ${this.spool.folder}${why}`, 0, "waiting");
      }
      await this.#progress(left);
    }
  }

  /** Deliver what there is, and end. What could not be delivered in time stays for the next recorder on this spool. */
  async close(): Promise<void> {
    try {
      await this.flush(this.#patienceMs);
    } catch (error) {
      this.#onProblem(`${sentence(error)} The next recorder on this spool will deliver them.`);
    } finally {
      this.#stopping.abort();
      this.#wake();
      await this.#delivering;
      await this.spool.close();
    }
  }

  async #deliverForEver(): Promise<void> {
    let nextLook = Date.now() + LOOK_FOR_ORPHANS_MS;
    while (!this.#stopping.signal.aborted) {
      const arrival = this.#arrival(LOOK_FOR_ORPHANS_MS); // before looking, so that nothing is missed
      let hasDelivered = false;
      try {
        if (Date.now() >= nextLook) {
          await this.spool.adopt();
          nextLook = Date.now() + LOOK_FOR_ORPHANS_MS;
        }
        hasDelivered = await this.#deliverNext();
      } catch (error) {
        this.#onProblem(`The spool in ${this.spool.folder} cannot be used (${sentence(error)}): retrying.`);
      }
      this.#tellProgress();
      if (hasDelivered) this.#wake();
      await arrival;
    }
  }

  /** Whether the next records of the spool were handled. An error is the disk's: the server's are waited for. */
  async #deliverNext(): Promise<boolean> {
    const taken = await this.spool.take(BATCH_ROWS, BATCH_BYTES);
    if (taken === null) return false;
    if (!(await this.#deliver(taken.records))) return false;
    this.spool.done(taken);
    return true;
  }

  /** True when each of `records` is delivered or kept aside, however long that takes; false if we are to stop. */
  async #deliver(records: readonly string[]): Promise<boolean> {
    let pauseMs = MIN_PAUSE_MS;
    while (!this.#stopping.signal.aborted) {
      try {
        await this.#send(records);
        if (this.#fault !== null) this.#onProblem("The server takes trajectories again.");
        this.#fault = null;
        return true;
      } catch (error) {
        if (!(error instanceof HindsightError)) throw error;
        if (isOfTheRows(error)) return await this.#narrow(records, error);
        this.#noteFault(error);
        await this.#sleep(isPassing(error) ? Math.max(error.retryAfterMs ?? 0, pauseMs) : KEY_PAUSE_MS);
        pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
      }
    }
    return false;
  }

  /** The server refuses these records together: halve them until the bad one is alone. */
  async #narrow(records: readonly string[], error: HindsightError): Promise<boolean> {
    const [only] = records;
    if (records.length === 1 && only !== undefined) {
      await this.#reject(JSON.parse(only) as Row, error.message);
      return true;
    }
    const middle = records.length >> 1;
    return (await this.#deliver(records.slice(0, middle))) && (await this.#deliver(records.slice(middle)));
  }

  async #send(records: readonly string[]): Promise<void> {
    const body = `{"trajectories":[${records.join(",")}]}`;
    const answer = (await this.connection.send("post", "/ingest/trajectories", { body })) as { results?: Result[] };
    if (answer.results?.length !== records.length) throw notHindsight(200);
    const refused = [...answer.results.entries()].filter(([, result]) => result.state === "refused");
    for (const [place, result] of refused) {
      const row = JSON.parse(records[place] ?? "null") as Row;
      await this.#reject({ ...row, agentId: result.agent_id || row.agentId }, result.reason ?? "");
    }
    this.delivered += records.length - refused.length;
  }

  /** Keep the row as a trace, which can be imported once the cause is fixed. */
  async #reject(row: Row, reason: string): Promise<void> {
    this.#onProblem(`Trajectory ${row.trajectoryId} was refused: ${reason}`);
    const windowId = `${row.startTime.slice(0, 13)}:00`;
    const file = await open(join(this.spool.folder, "rejected.jsonl"), "a", 0o600);
    try {
      await file.writeFile(`${JSON.stringify({ reason, trajectory: { ...row, windowId } })}\n`);
      await file.datasync();
    } finally {
      await file.close();
    }
    this.rejected += 1;
  }

  #noteFault(error: HindsightError): void {
    if (error.status === 429) return; // only the pace that the server wants
    if (this.#fault?.code !== error.code) {
      this.#onProblem(`${error.message} Trajectories stay in ${this.spool.folder} until it works again.`);
    }
    this.#fault = error;
    this.#tellProgress();
  }

  // Waiting. Only those who wait for us keep the process alive.

  #arrival(ms: number): Promise<void> {
    return new Promise((woken) => {
      const timer = setTimeout(woken, ms).unref();
      this.#wake = () => {
        clearTimeout(timer);
        woken();
      };
    });
  }

  async #sleep(ms: number): Promise<void> {
    await pause(ms, undefined, { ref: false, signal: this.#stopping.signal }).catch(() => undefined); // or told to stop
  }

  async #progress(ms: number): Promise<void> {
    await new Promise<void>((told) => {
      const timer = setTimeout(told, ms);
      this.#waiters.push(() => {
        clearTimeout(timer);
        told();
      });
    });
  }

  #tellProgress(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const tell of waiters) tell();
  }
}

/** Whether the content of the rows is the cause, so that waiting would not help. */
function isOfTheRows(error: HindsightError): boolean {
  return [400, 413, 415, 422].includes(error.status);
}
