/** The Python side of the repository, for tests that look at what arrived there. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
export const CLIENT = fileURLToPath(new URL("../", import.meta.url));
export const PYTHON = `${ROOT}.venv/bin/python`; // made by `make setup-dev`

const run = promisify(execFile);

/** What a Python command prints. */
export async function python(words: readonly string[], environment: Readonly<Record<string, string>> = {}): Promise<string> {
  const options = { cwd: ROOT, env: { ...process.env, ...environment }, maxBuffer: 2 ** 26 };
  return (await run(PYTHON, [...words], options)).stdout;
}

export interface StoredRow {
  trajectoryId: string;
  agentId: string;
  windowId: string;
  stepsJson: string;
  metricsJson: string;
  metadataJson: string;
  rewardComponentsJson: string;
  [column: string]: unknown;
}

/** The rows of the game's table whose agent's id begins with `prefix`, by `traces.py export`. */
export async function storedRows(database: string, prefix: string): Promise<StoredRow[]> {
  const until = new Date(Date.now() + 2 * 3_600_000).toISOString();
  const words = ["scripts/traces.py", "export", "-", "--until", until];
  const lines = await python(words, { DATABASE_URL: database });
  const rows = lines
    .trim()
    .split("\n")
    .map((line) => (JSON.parse(line) as { trajectory: StoredRow }).trajectory);
  return rows.filter((row) => row.agentId.startsWith(prefix));
}
