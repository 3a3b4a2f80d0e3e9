/** The console that the tests talk to: one for all of them, started before and stopped after. */
import { spawn } from "node:child_process";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import type { TestProject } from "vitest/node";

import { PYTHON, ROOT } from "./python.js";

export interface Served {
  url: string;
  full: string;
  read: string;
  database: string;
}

declare module "vitest" {
  interface ProvidedContext {
    served: Served;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const folder = await mkdtemp(join(tmpdir(), "hindsight-typescript-"));
  await chmod(folder, 0o755); // Postgres runs as another user where we are root
  const server = spawn(PYTHON, ["-m", "tests.fakes.typescript_console", folder], {
    cwd: ROOT,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = new Promise<void>((told) => server.once("close", () => told()));
  const served = await new Promise<Served>((ready, failed) => {
    void ended.then(() => failed(new Error("the console of the tests ended")));
    createInterface({ input: server.stdout }).once("line", (line) => ready(JSON.parse(line) as Served));
  });
  project.provide("served", served);
  return async () => {
    server.stdin.end();
    await ended;
    await rm(folder, { recursive: true, force: true });
  };
}
