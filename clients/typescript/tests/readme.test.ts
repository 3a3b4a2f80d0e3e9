/** Every command and every program of the README. */
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { afterAll, beforeAll, expect, test } from "vitest";

import { SimulatedPolicy } from "../simulated-policy.js";
import { keyOf, served } from "./console.js";
import { CLIENT, output, PYTHON, ROOT, storedRows } from "./python.js";

const README = await readFile(join(CLIENT, "README.md"), "utf8");
const BLOCKS = [...README.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language = "", text = ""]) => ({
  language,
  text,
}));
const COMMANDS = BLOCKS.filter((one) => one.language === "bash").flatMap((one) => one.text.trim().split("\n"));
const PROGRAMS = BLOCKS.filter((one) => one.language === "ts").map((one) => one.text);

let game = ""; // the folder of a game that uses the package
let environment: Record<string, string> = {};

beforeAll(async () => {
  game = await mkdtemp(join(tmpdir(), "hs-game-"));
  environment = { HINDSIGHT_URL: served.url, HINDSIGHT_KEY: served.full };
  await output("npm", ["pack", "--pack-destination", game], CLIENT);
  await writeFile(join(game, "package.json"), '{"name": "game", "private": true, "type": "module"}');
  await output("npm", ["install", "--offline", "./hindsight-grpo-client-0.1.0.tgz"], game);
});
afterAll(() => rm(game, { recursive: true, force: true }));

test("the package has the built modules with their types and nothing else, and needs nothing", async () => {
  const installed = join(game, "node_modules", "hindsight-grpo-client");
  expect((await readdir(installed)).sort()).toEqual(["README.md", "dist", "package.json"]);
  expect(await readdir(join(installed, "dist"))).toEqual(expect.arrayContaining(["index.js", "index.d.ts"]));
  expect((await readdir(join(game, "node_modules"))).filter((name) => !name.startsWith("."))).toEqual([
    "hindsight-grpo-client",
  ]);
});

test("the lock has every package by its exact version and digest, and names no registry", async () => {
  const manifest = JSON.parse(await readFile(join(CLIENT, "package.json"), "utf8")) as Record<string, object>;
  expect(manifest["dependencies"]).toBeUndefined();
  for (const version of Object.values(manifest["devDependencies"] ?? {})) expect(version).toMatch(/^\d+\.\d+\.\d+$/);
  const lock = await readFile(join(CLIENT, "package-lock.json"), "utf8");
  expect(lock).not.toContain('"resolved"');
  const { packages } = JSON.parse(lock) as { packages: Record<string, { integrity?: string }> };
  const undigested = Object.entries(packages).filter(([name, one]) => name !== "" && one.integrity === undefined);
  expect(undigested).toEqual([]);
});

test("the programs of the README compile strictly against the package, and run", async () => {
  expect(PROGRAMS).toHaveLength(3);
  await mkdir(join(game, "node_modules", "@types"));
  for (const name of ["@types/node", "undici-types"])
    await symlink(join(CLIENT, "node_modules", name), join(game, "node_modules", name));
  for (const [place, text] of PROGRAMS.entries()) await writeFile(join(game, `program-${place}.ts`), text);
  const strict = ["--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "--types", "node"];
  await output(
    join(CLIENT, "node_modules", ".bin", "tsc"),
    [...strict, ...PROGRAMS.map((_, place) => `program-${place}.ts`)],
    game,
  );

  const policy = new SimulatedPolicy();
  const more = { ...environment, PROMPTS_URL: await policy.open(), PROMPTS_KEY: policy.key };
  const said = await Promise.all(
    PROGRAMS.map((_, place) => output(process.execPath, [`program-${place}.js`], game, more)),
  );
  await policy.close();
  expect(said[0]).toContain("1 delivered, 0 refused");
  expect(said[1]).toMatch(/waiting|409 conflict/);
  expect(said[2]).toContain("episodes: 10");
  expect((await storedRows(served.database, "agent-7")).map((row) => row["finalBalance"])).toEqual([990]);
});

/** How each command is run here, or what shows that it was run before. */
const RUN: Record<string, () => Promise<void>> = {
  "npm install --no-save": makes,
  "npm test": makes,
  "npm pack": async () => expect(await readdir(game)).toContain("hindsight-grpo-client-0.1.0.tgz"),
  "npm install ./hindsight-grpo-client-0.1.0.tgz": async () =>
    expect(await readdir(join(game, "node_modules"))).toContain("hindsight-grpo-client"),
  "npm run generate": async () => expect(await readdir(join(CLIENT, "tests"))).toContain("generated.test.ts"),
  "npm run demo": demo,
  "npm run demo -- --simulated": simulatedDemo,
  "python scripts/traces.py import spool/rejected.jsonl": importRejected,
};

async function makes(): Promise<void> {
  const makefile = await readFile(join(ROOT, "Makefile"), "utf8");
  expect(makefile).toMatch(/^test-typescript:.*cd clients\/typescript .*\|\| npm install --no-save .*npm test$/ms);
}

async function demo(): Promise<void> {
  const key = await keyOf("agent", "demo-agent");
  const said = await output("npm", ["run", "-s", "demo"], CLIENT, { HINDSIGHT_URL: served.url, HINDSIGHT_KEY: key });
  expect(said).toContain(`Delivered 1 trajectory to ${served.url}, refused 0.`);
  expect(said).toContain("The policy is the real service.");
  expect(said).toContain("192 episodes");
}

async function simulatedDemo(): Promise<void> {
  const said = await output("npm", ["run", "-s", "demo", "--", "--simulated"], CLIENT, environment);
  expect(said).toContain("No console was given: the trajectory waits in 1 file of the spool");
  expect(said).toContain("SIMULATED policy");
  expect(said).toContain("192 episodes");
}

async function importRejected(): Promise<void> {
  const line = {
    reason: "late",
    trajectory: {
      trajectoryId: "readme-1",
      agentId: "readme-agent",
      startTime: "2026-03-02T10:05:00Z",
      stepsJson: "[{}]",
    },
  };
  await mkdir(join(game, "spool"), { recursive: true });
  await writeFile(join(game, "spool", "rejected.jsonl"), `${JSON.stringify(line)}\n`);
  const words = [join(ROOT, "scripts", "traces.py"), "import", "spool/rejected.jsonl"];
  expect(await output(PYTHON, words, game, { DATABASE_URL: served.database })).toContain("1 of them new");
}

const PATIENCE_MS = 300_000; // the demo starts a database and a service of its own

test.each(COMMANDS)(
  "%s",
  async (command) => {
    const how = RUN[command];
    expect(how, "a new command of the README needs a way to run it here").toBeDefined();
    await how?.();
  },
  PATIENCE_MS,
);
