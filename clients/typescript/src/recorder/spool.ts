import { mkdir, readdir } from "node:fs/promises";
import { resolve } from "node:path";

import { Owner } from "./owner.js";
import { append, createSegment, ownerOf, read, remove, type Segment, SUFFIX, takeOver } from "./segments.js";

const SEGMENT_BYTES = 16 * 2 ** 20;

/** Records in order, to be confirmed with `done`. */
export interface Taken {
  records: string[];
  segment: Segment;
  end: number;
}

interface Pending {
  record: string;
  written: () => void;
  failed: (error: unknown) => void;
}

/**
 * A queue on disk: appended records survive `kill -9` and power cuts, and are taken out in order.
 *
 * A spool is a folder of segments. Each belongs to one process; when that dies, any other takes its segments over.
 * Appends share their flush: while one is running the next ones queue up. Single records are not marked as done, so
 * whoever comes after a crash gets the records of an unfinished segment again: consumers must be idempotent.
 */
export class Spool {
  readonly #owner: Owner;
  #segments: Segment[] = [];
  #pending: Pending[] = [];
  #committing: Promise<void> | null = null;
  #isClosed = false;
  /** How many records of ours were written to disk; the first `finished` of them are done. */
  appended = 0;
  finished = 0;
  /** Called whenever there may be something to take. */
  onArrival: () => void = () => {};

  private constructor(
    readonly folder: string,
    owner: Owner,
    private readonly segmentBytes: number,
  ) {
    this.#owner = owner;
  }

  static async open(folder: string, segmentBytes = SEGMENT_BYTES): Promise<Spool> {
    const path = resolve(folder);
    await mkdir(path, { recursive: true, mode: 0o700 });
    return new Spool(path, await Owner.in(path), segmentBytes);
  }

  get isEmpty(): boolean {
    return this.#pending.length === 0 && this.#segments.every((segment) => segment.taken >= segment.size);
  }

  /** Returns when `record`, one line, is on disk; the error of the disk if it cannot be written. */
  async append(record: string): Promise<void> {
    if (this.#isClosed) throw new Error("The recorder is closed: open another one on the same spool.");
    await new Promise<void>((written, failed) => {
      this.#pending.push({ record, written, failed });
      this.#committing ??= this.#commit().finally(() => {
        this.#committing = null;
      });
    });
  }

  /** The next records, or null if there are none for now. Call `done` before the next `take`. */
  async take(maxRecords: number, maxBytes: number): Promise<Taken | null> {
    for (let segment = this.#segments[0]; segment !== undefined; segment = this.#segments[0]) {
      const mayGrow = segment.isActive; // before reading: it may be filled and closed meanwhile
      const { records, end } = await read(segment, maxRecords, maxBytes);
      if (records.length > 0) return { records, segment, end };
      if (mayGrow) return null;
      this.#segments.shift();
      await remove(segment);
    }
    return null;
  }

  /** Once a whole segment is done, no process gets its records again. */
  done(taken: Taken): void {
    taken.segment.taken = taken.end;
    if (!taken.segment.isAdopted) this.finished += taken.records.length;
  }

  /** Take over the segments of dead processes, the oldest first; returns how many. */
  async adopt(): Promise<number> {
    const names = (await readdir(this.folder)).filter((name) => name.endsWith(SUFFIX)).sort();
    const orphans: Segment[] = [];
    const dead = new Map<string, boolean>([[this.#owner.name, false]]);
    for (const name of names) {
      const owner = ownerOf(name);
      if (!dead.has(owner)) dead.set(owner, await this.#owner.isDead(owner));
      if (dead.get(owner) !== true) continue;
      const segment = await takeOver(this.folder, name, this.#owner.name);
      if (segment !== null) orphans.push(segment);
    }
    await this.#owner.sweep();
    this.#segments.unshift(...orphans);
    if (orphans.length > 0) this.onArrival();
    return orphans.length;
  }

  /** Release the files; records that are not done stay on disk for the next process. */
  async close(): Promise<void> {
    this.#isClosed = true; // from now on others may take our segments over
    await this.#committing;
    for (const segment of this.#segments) {
      if (segment.taken >= segment.size) await remove(segment);
      else await segment.file.close();
    }
    this.#segments = [];
    await this.#owner.close();
  }

  async #commit(): Promise<void> {
    while (this.#pending.length > 0) {
      const gathered = this.#pending;
      this.#pending = [];
      try {
        await append(
          await this.#active(),
          gathered.map((one) => one.record),
        );
      } catch (error) {
        for (const one of gathered) one.failed(error);
        continue;
      }
      this.appended += gathered.length;
      for (const one of gathered) one.written();
      this.onArrival();
    }
  }

  async #active(): Promise<Segment> {
    const last = this.#segments.at(-1);
    if (last?.isActive) {
      if (last.size < this.segmentBytes) return last;
      last.isActive = false;
    }
    const segment = await createSegment(this.folder, this.#owner.name);
    this.#segments.push(segment);
    return segment;
  }
}
