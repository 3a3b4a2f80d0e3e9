import { createHash, randomUUID } from "node:crypto";
import { type FileHandle, open, rename, unlink } from "node:fs/promises";
import { join } from "node:path";

/**
 * A file of records, one line each: eight characters of a checksum, a blank, the record. A line that was cut off by a
 * crash has no end, and its `append` never returned; such a tail is left out.
 *
 * Its name says when it began, so that the oldest is delivered first, and who owns it.
 */
export interface Segment {
  path: string;
  file: FileHandle;
  /** How many bytes are known to be on disk. */
  size: number;
  /** How many of them are done. */
  taken: number;
  isActive: boolean;
  isAdopted: boolean;
  isDamaged: boolean;
}

export const SUFFIX = ".spool";

export async function createSegment(folder: string, owner: string): Promise<Segment> {
  const began = String(process.hrtime.bigint()).padStart(20, "0");
  const name = `${String(Date.now()).padStart(15, "0")}-${began}-${randomUUID().slice(0, 8)}.${owner}${SUFFIX}`;
  const path = join(folder, name);
  const file = await open(path, "ax+", 0o600);
  try {
    await syncFolder(folder);
  } catch (error) {
    await file.close();
    await unlink(path);
    throw error;
  }
  return { path, file, size: 0, taken: 0, isActive: true, isAdopted: false, isDamaged: false };
}

/** The segment of a dead owner under our name; null if another process was quicker. */
export async function takeOver(folder: string, name: string, owner: string): Promise<Segment | null> {
  const path = join(folder, `${name.split(".")[0]}.${owner}${SUFFIX}`);
  try {
    await rename(join(folder, name), path);
    await syncFolder(folder);
    const file = await open(path, "r+");
    const { size } = await file.stat();
    return { path, file, size, taken: 0, isActive: false, isAdopted: true, isDamaged: false };
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** The owner in a segment's name. */
export function ownerOf(name: string): string {
  return name.split(".")[1] ?? "";
}

/** On disk when it returns; after a failure nothing of it is left. */
export async function append(segment: Segment, records: readonly string[]): Promise<void> {
  const lines = Buffer.from(records.map((record) => `${checksum(record)} ${record}\n`).join(""));
  try {
    for (let at = 0; at < lines.length; ) {
      const { bytesWritten } = await segment.file.write(lines, at, lines.length - at);
      at += bytesWritten;
    }
    await segment.file.datasync();
  } catch (error) {
    await segment.file.truncate(segment.size);
    throw error;
  }
  segment.size += lines.length;
}

/** The next whole records, at least one if there is one, and where they end. */
export async function read(
  segment: Segment,
  maxRecords: number,
  maxBytes: number,
): Promise<{ records: string[]; end: number }> {
  const records: string[] = [];
  let at = segment.taken;
  while (records.length === 0 && at < segment.size) {
    const lines = await wholeLines(segment, at, maxBytes);
    if (lines === null) break; // a torn tail
    for (const line of lines) {
      if (records.length === maxRecords) break;
      at += line.length + 1;
      const record = recordIn(line);
      if (record === null) segment.isDamaged = true;
      else records.push(record);
    }
  }
  return { records, end: records.length === 0 ? segment.size : at };
}

/** The lines from `at`, up to `maxBytes` of them or one; null if there is no whole one. */
async function wholeLines(segment: Segment, at: number, maxBytes: number): Promise<Buffer[] | null> {
  for (let wanted = maxBytes; ; wanted *= 2) {
    const length = Math.min(wanted, segment.size - at);
    const buffer = Buffer.alloc(length);
    const { bytesRead } = await segment.file.read(buffer, 0, length, at);
    const found = buffer.subarray(0, bytesRead);
    const last = found.lastIndexOf(0x0a);
    if (last >= 0) return split(found.subarray(0, last + 1));
    if (bytesRead < length || length === segment.size - at) return null;
  }
}

function split(lines: Buffer): Buffer[] {
  const found: Buffer[] = [];
  for (let start = 0, end = lines.indexOf(0x0a); end >= 0; start = end + 1, end = lines.indexOf(0x0a, start)) {
    found.push(lines.subarray(start, end));
  }
  return found;
}

function recordIn(line: Buffer): string | null {
  const record = line.subarray(9).toString();
  return line.subarray(0, 9).toString() === `${checksum(record)} ` ? record : null;
}

function checksum(record: string): string {
  return createHash("sha256").update(record).digest("hex").slice(0, 8);
}

/** Delete a segment that is done; one with damage before its end is kept beside it for whoever looks. */
export async function remove(segment: Segment): Promise<void> {
  if (segment.isDamaged) await rename(segment.path, segment.path.replace(SUFFIX, ".damaged"));
  else await unlink(segment.path);
  await segment.file.close();
}

/** Flush the names in a folder from the cache to the disk. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

export function isMissing(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "ENOENT";
}
