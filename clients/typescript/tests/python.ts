/** Commands, and the Python side of the repository for tests that look at what arrived there. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
export const CLIENT = fileURLToPath(new URL("../", import.meta.url));
export const PYTHON = `${ROOT}.venv/bin/python`; // made by `make setup-dev`

const run = promisify(execFile);

type Variables = Readonly<Record<string, string>>;

/** What a command prints; an error with all of it if it fails. */
export async function output(
  command: string,
  words: readonly string[],
  cwd: string,
  more: Variables = {},
): Promise<string> {
  return (await run(command, [...words], { cwd, env: { ...process.env, ...more }, maxBuffer: 2 ** 26 })).stdout;
}

/** What a Python command of the repository prints. */
export async function python(words: readonly string[], more: Variables = {}): Promise<string> {
  return await output(PYTHON, words, ROOT, more);
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
