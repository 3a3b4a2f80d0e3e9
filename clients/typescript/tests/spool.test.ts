/** The spool: in order, nothing acknowledged is lost, torn tails are left out. */
import { open, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { expect, test, vi } from "vitest";

import { Spool } from "../src/recorder/spool.js";
import { folder } from "./console.js";

async function takeAll(spool: Spool): Promise<string[]> {
  const records: string[] = [];
  for (let taken = await spool.take(2, 1e6); taken !== null; taken = await spool.take(2, 1e6)) {
    records.push(...taken.records);
    spool.done(taken);
  }
  return records;
}

async function adopted(path: string): Promise<{ records: string[]; left: string[] }> {
  const spool = await Spool.open(path);
  await spool.adopt();
  const records = await takeAll(spool);
  await spool.close();
  return { records, left: await readdir(path) };
}

/** A spool that its owner has left with these records; its one segment. */
async function leftBehind(path: string, records: readonly string[]): Promise<string> {
  const spool = await Spool.open(path);
  for (const record of records) await spool.append(record);
  await spool.close();
  const [segment, ...others] = await readdir(path);
  expect(others).toEqual([]);
  return join(path, segment ?? "");
}

test("records come out in order and the folder is empty afterwards", async () => {
  const path = await folder();
  const spool = await Spool.open(path);
  const records = Array.from({ length: 5 }, (_, number) => `record ${number} ü 😀`);
  for (const record of records) await spool.append(record);
  expect(await takeAll(spool)).toEqual(records);
  expect(spool.isEmpty).toBe(true);
  await spool.close();
  expect(await readdir(path)).toEqual([]);
});

test("appends at the same time share a flush, and come out in the order of the calls", async () => {
  const path = await folder();
  const probe = await open(join(path, "probe"), "w");
  const datasync = vi.spyOn(Object.getPrototypeOf(probe) as typeof probe, "datasync");
  await probe.close();
  const spool = await Spool.open(path);
  await Promise.all(Array.from({ length: 100 }, (_, number) => spool.append(String(number))));
  expect(datasync.mock.calls.length).toBeLessThan(5);
  datasync.mockRestore();
  expect(await takeAll(spool)).toEqual(Array.from({ length: 100 }, (_, number) => String(number)));
  await spool.close();
});

test("what was not done is found by the next, oldest first", async () => {
  const path = await folder();
  await leftBehind(path, ["a", "b"]);
  const second = await Spool.open(path);
  await second.append("c");
  expect(await second.adopt()).toBe(1);
  expect(await takeAll(second)).toEqual(["a", "b", "c"]);
  await second.close();
  expect(await readdir(path)).toEqual([]);
});

test("a segment of a living owner is left alone, and of two that want a dead one's only one gets it", async () => {
  const path = await folder();
  await leftBehind(path, ["orphan"]);
  const [alive, other] = [await Spool.open(path), await Spool.open(path)];
  await alive.append("mine");
  const numbers = await Promise.all([alive.adopt(), other.adopt()]);
  expect(numbers.sort()).toEqual([0, 1]);
  const found = [...(await takeAll(alive)), ...(await takeAll(other))];
  expect(found.sort()).toEqual(["mine", "orphan"]);
  await alive.close();
  await other.close();
  expect(await readdir(path)).toEqual([]);
});

test.each([1, 4, 12])("a tail that was torn off by %i bytes is left out", async (cut) => {
  const path = await folder();
  const segment = await leftBehind(path, ["whole", "torn"]);
  const bytes = await readFile(segment);
  await writeFile(segment, bytes.subarray(0, -cut));
  expect(await adopted(path)).toEqual({ records: ["whole"], left: [] });
});

test("a tail of zeros, as after a power cut, is left out", async () => {
  const path = await folder();
  const segment = await leftBehind(path, ["whole"]);
  await writeFile(segment, Buffer.concat([await readFile(segment), Buffer.alloc(64)]));
  expect(await adopted(path)).toEqual({ records: ["whole"], left: [] });
});

test("damage costs its own record, and is kept for whoever looks", async () => {
  const path = await folder();
  const segment = await leftBehind(path, ["first", "second", "third"]);
  await writeFile(segment, (await readFile(segment, "utf8")).replace("second", "sXcond"));
  const { records, left } = await adopted(path);
  expect(records).toEqual(["first", "third"]);
  expect(left).toEqual([expect.stringMatching(/\.damaged$/)]);
});

test("a full disk is told to the writer and leaves no half record", async () => {
  const path = await folder();
  const spool = await Spool.open(path);
  await spool.append("before");
  const probe = await open(join(path, "probe"), "w");
  const datasync = vi.spyOn(Object.getPrototypeOf(probe) as typeof probe, "datasync");
  await probe.close();
  datasync.mockRejectedValueOnce(new Error("ENOSPC: no space left on device"));
  await expect(spool.append("lost")).rejects.toThrow("no space left");
  datasync.mockRestore();
  await spool.append("after");
  expect(await takeAll(spool)).toEqual(["before", "after"]);
  await spool.close();
});

test("a large spool gives its disk space back while it is used", async () => {
  const path = await folder();
  const spool = await Spool.open(path, 100);
  for (let number = 0; number < 10; number += 1) {
    await spool.append("x".repeat(60));
    expect(await takeAll(spool)).toEqual(["x".repeat(60)]);
  }
  expect((await readdir(path)).filter((name) => name.endsWith(".spool"))).toHaveLength(1);
  await spool.close();
});

test("a record larger than one read comes out whole", async () => {
  const path = await folder();
  const spool = await Spool.open(path);
  const large = "y".repeat(3 * 2 ** 20);
  await spool.append(large);
  await spool.append("small");
  expect(await takeAll(spool)).toEqual([large, "small"]);
  await spool.close();
});

test("writers and a reader at once lose nothing, however small the segments", async () => {
  const spool = await Spool.open(await folder(), 200);
  const records = Array.from({ length: 300 }, (_, number) => `record-${String(number).padStart(3, "0")}`);
  const writing = Promise.all(
    records.map(async (record, number) => {
      for (let turn = 0; turn < number % 7; turn += 1) await new Promise((next) => setImmediate(next));
      await spool.append(record);
    }),
  );
  const found: string[] = [];
  while (found.length < records.length) {
    found.push(...(await takeAll(spool)));
    await new Promise((next) => setImmediate(next));
  }
  await writing;
  expect(found.sort()).toEqual(records);
  await spool.close();
});

test("nothing is appended after the end, when others may already take the segments over", async () => {
  const spool = await Spool.open(await folder());
  await spool.close();
  await expect(spool.append("late")).rejects.toThrow("closed");
});

test("a path that no socket can have is refused in a sentence", async () => {
  await expect(Spool.open(join(await folder(), "x".repeat(120)))).rejects.toThrow("too long a path");
});
