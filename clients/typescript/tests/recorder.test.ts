/** The recorder: rows of the game's shape, exactly once, whatever happens to the server or to the process. */
import { spawn } from "node:child_process";
import { mkdir, readdir, readFile, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { expect, onTestFinished, test } from "vitest";

import { type Action, Hindsight, type LLMCall, type Recorder, type StartOptions } from "../src/index.js";
import { folder, hindsight, hindsightOf, keyOf, refusal, served, serving } from "./console.js";
import { Line } from "./line.js";
import { CLIENT, python, storedRows } from "./python.js";

const ACCOUNTS = { agentBalance: 1000, agentPnL: 12.5, openPositions: 0 };
const CALL: LLMCall = {
  model: "hindsight@step3",
  systemPrompt: "You trade.",
  userPrompt: "ACME at 100.",
  response: "BUY ACME",
  temperature: 0.7,
  maxTokens: 64,
  latencyMs: 312.4,
  completionTokenIds: [5, 6, 2],
  completionLogprobs: [-0.5, -0.25, -0.01],
};
const BUY: Action = { actionType: "BUY", parameters: { ticker: "ACME" }, success: true, result: { shares: 10 } };
const LONG_AGO = new Date(Date.now() - 5 * 3_600_000);
const FLUSH_MS = 50_000;

const quiet = (): void => undefined;

async function play(recorder: Recorder, agent: string, options: StartOptions = {}): Promise<string> {
  return await recorder.record(
    agent,
    async (trajectory) => {
      await trajectory.decide(ACCOUNTS, (step) => {
        step.logLLMCall(CALL);
        step.completeStep(BUY, 0.5);
      });
      return await trajectory.endTrajectory({ finalBalance: 990, finalPnL: 0 });
    },
    options,
  );
}

async function rejectedIn(spool: string): Promise<{ reason: string; trajectory: Record<string, unknown> }[]> {
  const lines = (await readFile(join(spool, "rejected.jsonl"), "utf8")).trim().split("\n");
  return lines.map((line) => JSON.parse(line) as { reason: string; trajectory: Record<string, unknown> });
}

test("a row has exactly the shape of the game's recorder", async () => {
  const client = await hindsightOf("agent", "shape-agent");
  const recorder = await client.recorder({ spool: await folder() });
  const trajectory = recorder.startTrajectory("shape-agent");
  const step = trajectory.step(ACCOUNTS, new Date(1_772_449_140_000));
  step.logProviderAccess("MARKET", { ACME: 100 }, "prices");
  step.logLLMCall(CALL);
  step.completeStep(BUY, 0.5);
  const knowledge = { actualOutcomes: { ACME: "up" } };
  const id = await trajectory.endTrajectory({ finalBalance: 990, finalPnL: 0, gameKnowledge: knowledge });
  await recorder.close();
  expect(id).toMatch(/^\d{17,19}$/);
  expect([recorder.delivered, recorder.rejected]).toEqual([1, 0]);

  const [row, ...others] = await storedRows(served.database, "shape-agent");
  expect(others).toEqual([]);
  expect(row).toMatchObject({
    trajectoryId: id,
    windowHours: 1,
    scenarioId: row?.windowId,
    episodeLength: 1,
    finalStatus: "completed",
    finalBalance: 990,
    finalPnL: 0,
    tradesExecuted: 1,
    postsCreated: 0,
    totalReward: 0.5,
    isTrainingData: true,
    isEvaluation: false,
    usedInTraining: false,
  });
  expect(String(row?.["startTime"]).slice(0, 13), "its window is the hour of its start").toBe(
    row?.windowId.slice(0, 13),
  );
  expect(JSON.parse(row?.stepsJson ?? "")).toEqual([
    {
      stepNumber: 0,
      timestamp: 1_772_449_140_000,
      environmentState: ACCOUNTS,
      providerAccesses: [{ providerName: "MARKET", data: { ACME: 100 }, purpose: "prices" }],
      llmCalls: [{ ...CALL, purpose: "action" }],
      action: BUY,
      reward: 0.5,
    },
  ]);
  expect(JSON.parse(row?.metricsJson ?? "")).toEqual({
    episodeLength: 1,
    finalStatus: "completed",
    finalBalance: 990,
    finalPnL: 0,
    tradesExecuted: 1,
    postsCreated: 0,
    errorCount: 0,
  });
  // The console adds who sent it: what an agent says of its own success is a claim.
  const metadata = { isTrainingData: true, gameKnowledge: knowledge, sentBy: "agent" };
  expect(JSON.parse(row?.metadataJson ?? "")).toEqual(metadata);
  expect(JSON.parse(row?.rewardComponentsJson ?? "")).toEqual({ environmentReward: 0.5 });
});

test("steps that fail or are left without an action are recorded as errors, and half an emoji does no harm", async () => {
  const client = await hindsightOf("agent", "clumsy-agent");
  const recorder = await client.recorder({ spool: await folder() });
  const broken = recorder.record("clumsy-agent", async (trajectory) => {
    await trajectory.decide({ agentBalance: Number.NaN }, (step) =>
      step.logLLMCall({ ...CALL, response: "a\0b \ud83d" }),
    );
    await trajectory.decide(ACCOUNTS, () => {
      throw new Error("the agent broke");
    });
  });
  await expect(broken).rejects.toThrow("the agent broke");
  await recorder.close();
  expect([recorder.delivered, recorder.rejected]).toEqual([1, 0]);
  const [row] = await storedRows(served.database, "clumsy-agent");
  expect(row?.["finalStatus"]).toBe("completed_with_errors");
  expect(row?.stepsJson).toContain('"a\\u0000b \\ud83d"');
  const steps = JSON.parse(row?.stepsJson ?? "") as { action: Action; environmentState: unknown }[];
  expect(steps.map((step) => step.action.error)).toEqual(["the step was left without an action", "the agent broke"]);
  expect(steps[0]?.environmentState).toEqual({ agentBalance: null });
});

test("agents go on while the server is away, and everything arrives once when it is back", async () => {
  const line = await new Line(served.url).open();
  onTestFinished(() => line.cut());
  const client = await hindsightOf("team", "away", line.url);
  const spool = await folder();
  const problems: string[] = [];
  const recorder = await client.recorder({ spool, onProblem: (message) => problems.push(message) });
  const team = Array.from({ length: 20 }, (_, number) => `agent-${number}`);
  const recorded: string[] = [];
  const round = async (): Promise<void> =>
    void recorded.push(...(await Promise.all(team.map((agent) => play(recorder, agent)))));

  await round();
  await recorder.flush(FLUSH_MS);
  await line.cut();
  for (let turn = 0; turn < 4; turn += 1) await round();
  expect((await refusal(recorder.flush(300))).message).toMatch(/still wait in .* does not answer/);
  expect(recorder.delivered).toBe(20);
  await line.open();
  await round();
  await recorder.close();

  const arrived = await storedRows(served.database, "away/");
  expect(arrived.map((row) => row.trajectoryId).sort()).toEqual(recorded.sort());
  expect(new Set(recorded).size).toBe(120);
  expect([recorder.delivered, recorder.rejected]).toEqual([120, 0]);
  expect(problems).toHaveLength(2); // once away, once back
  expect(await readdir(spool)).toEqual([]);
});

/** A process that records; the ids that were acknowledged when it was killed, or when it ended by itself. */
async function recordInAProcess(
  url: string,
  spool: string,
  agent: string,
  key: string,
  killAfter: number,
): Promise<string[]> {
  const words = ["--import", "tsx", "tests/recording-child.ts", url, spool, agent, killAfter === 0 ? "leave" : "go on"];
  const child = spawn(process.execPath, words, {
    cwd: CLIENT,
    env: { ...process.env, KEY: key },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const acknowledged: string[] = [];
  createInterface({ input: child.stdout }).on("line", (id) => {
    acknowledged.push(id);
    if (acknowledged.length === killAfter) child.kill("SIGKILL"); // wherever it is now
  });
  const [code, signal] = await new Promise<[number | null, string | null]>((ended) =>
    child.once("close", (...how) => ended(how)),
  );
  expect([code, signal]).toEqual(killAfter === 0 ? [0, null] : [null, "SIGKILL"]);
  return acknowledged;
}

test.each([
  ["before anything was delivered", "http://127.0.0.1:9", 30],
  ["while rows are delivered", served.url, 30],
  ["while rows are delivered, later", served.url, 200],
])("kill -9 %s loses nothing, and every row arrives once", async (_, url, killAfter) => {
  const agent = `killed-${killAfter}-${new URL(url).port}`;
  const [key, spool] = [await keyOf("agent", agent), await folder()];
  const acknowledged = await recordInAProcess(url, spool, agent, key, killAfter);
  expect(acknowledged.length).toBeGreaterThanOrEqual(killAfter);

  const next = await hindsight(key).recorder({ spool });
  await next.flush(FLUSH_MS);
  await next.close();
  const arrived = (await storedRows(served.database, agent)).map((row) => row.trajectoryId);
  expect(arrived).toEqual(expect.arrayContaining(acknowledged));
  expect(new Set(arrived).size).toBe(arrived.length);
  // Of what was not acknowledged, at most the row in hand may be there.
  expect(arrived.length).toBeLessThanOrEqual(acknowledged.length + 1);
  expect([next.rejected, await readdir(spool)]).toEqual([0, []]);
});

test("a process that forgets to close its recorder ends, and the next recorder delivers", async () => {
  const [key, spool] = [await keyOf("agent", "forgetful"), await folder()];
  const acknowledged = await recordInAProcess("http://127.0.0.1:9", spool, "forgetful", key, 0);
  expect(acknowledged).toHaveLength(10);
  const next = await hindsight(key).recorder({ spool });
  await next.close();
  expect(next.delivered).toBe(10);
});

test("a living recorder delivers the rows of one that died beside it", async () => {
  const [key, spool] = [await keyOf("agent", "neighbour"), await folder()];
  const living = await hindsight(key).recorder({ spool });
  const acknowledged = await recordInAProcess("http://127.0.0.1:9", spool, "neighbour", key, 5);
  await expect.poll(() => living.delivered, { timeout: FLUSH_MS }).toBeGreaterThanOrEqual(acknowledged.length);
  await living.close();
  expect(await readdir(spool)).toEqual([]);
});

test("a row that is refused costs itself, is kept with its reason, and can be imported", async () => {
  const client = await hindsightOf("team", "late");
  const [spool, problems] = [await folder(), [] as string[]];
  const recorder = await client.recorder({ spool, onProblem: (message) => problems.push(message) });
  const good = [await play(recorder, "one")];
  const bad = await play(recorder, "two", { startedAt: LONG_AGO });
  good.push(await play(recorder, "three"));
  await recorder.close();
  expect([recorder.delivered, recorder.rejected]).toEqual([2, 1]);
  expect(problems).toEqual([expect.stringContaining(`${bad} was refused: its window is closed`)]);
  const [line, ...others] = await rejectedIn(spool);
  expect(others).toEqual([]);
  expect(line?.trajectory).toMatchObject({ trajectoryId: bad, agentId: "late/two", finalBalance: 990 });
  expect((await storedRows(served.database, "late/")).map((row) => row.trajectoryId).sort()).toEqual(good.sort());

  await python(["scripts/traces.py", "import", join(spool, "rejected.jsonl")], { DATABASE_URL: served.database });
  const imported = (await storedRows(served.database, "late/two")).map((row) => [row.trajectoryId, row.windowId]);
  expect(imported).toEqual([[bad, `${LONG_AGO.toISOString().slice(0, 13)}:00`]]);
});

test("a row for which the whole request is refused is found by halving", async () => {
  const client = await hindsightOf("team", "large");
  const spool = await folder();
  const nobody = hindsight(served.full, { url: "http://127.0.0.1:9" }); // so that all rows share a batch
  const waiting = await nobody.recorder({
    spool,
    patienceMs: 0,
    onProblem: quiet,
  });
  for (const name of ["a", "b"]) await play(waiting, name);
  const huge = waiting.startTrajectory("c");
  huge.step({ news: "n".repeat(5_100_000) }).completeStep(BUY);
  await huge.endTrajectory();
  for (const name of ["d", "e"]) await play(waiting, name);
  await waiting.close();

  const recorder = await client.recorder({ spool, onProblem: quiet });
  await recorder.close();
  expect([recorder.delivered, recorder.rejected]).toEqual([4, 1]);
  const [line] = await rejectedIn(spool);
  expect([line?.trajectory["trajectoryId"], line?.reason]).toEqual([
    huge.trajectoryId,
    expect.stringContaining("stepsJson"),
  ]);
  expect((await storedRows(served.database, "large/")).map((row) => row.agentId).sort()).toEqual(
    ["a", "b", "d", "e"].map((name) => `large/${name}`),
  );
});

test("a wrong key costs no row: they wait, and the reason is told once", async () => {
  const [spool, problems] = [await folder(), [] as string[]];
  const wrong = await hindsight("hsi_a-key-that-never-was").recorder({
    spool,
    patienceMs: 0,
    onProblem: (message) => problems.push(message),
  });
  await play(wrong, "patient");
  await expect.poll(() => problems, { timeout: FLUSH_MS }).toEqual([expect.stringContaining("The key is wrong.")]);
  await wrong.close();
  expect(problems).toEqual([expect.anything(), expect.stringContaining("The next recorder on this spool")]);
  expect([wrong.delivered, wrong.rejected]).toEqual([0, 0]);

  const right = await hindsightOf("agent", "patient").then((client) => client.recorder({ spool }));
  await right.close();
  expect(right.delivered).toBe(1);
});

test("the pace that the server wants is kept without a word, and another's answer costs no row", async () => {
  const [spool, problems, answers] = [await folder(), [] as string[], ["429", "{}"]];
  const url = await serving((_, response) => {
    const answer = answers.shift() ?? "{}";
    response.writeHead(answer === "429" ? 429 : 200, { "retry-after": "0" }).end(answer);
  });
  const recorder = await new Hindsight({ url }).recorder({
    spool,
    patienceMs: 0,
    onProblem: (message) => problems.push(message),
  });
  await play(recorder, "paced");
  await expect.poll(() => problems, { timeout: FLUSH_MS }).toEqual([expect.stringContaining("is not Hindsight")]);
  await recorder.close();
  expect([recorder.delivered, recorder.rejected]).toEqual([0, 0]);
  const next = await hindsightOf("agent", "paced").then((client) => client.recorder({ spool }));
  await next.close();
  expect(next.delivered).toBe(1);
});

test("a disk that takes no refused row ends nothing: the row waits until it is kept", async () => {
  const client = await hindsightOf("agent", "full-disk");
  const [spool, problems] = [await folder(), [] as string[]];
  await mkdir(join(spool, "rejected.jsonl")); // stands for a disk that takes nothing
  const recorder = await client.recorder({ spool, onProblem: (message) => problems.push(message) });
  await play(recorder, "full-disk", { startedAt: LONG_AGO });
  await expect.poll(() => problems.join(), { timeout: FLUSH_MS }).toContain("cannot be used");
  await rmdir(join(spool, "rejected.jsonl"));
  await play(recorder, "full-disk");
  await recorder.close();
  expect([recorder.delivered, recorder.rejected, (await rejectedIn(spool)).length]).toEqual([1, 1, 1]);
});

test("what cannot be recorded is refused where it is given", async () => {
  const recorder = await hindsight().recorder({ spool: await folder() });
  for (const name of ["", "two words", "x".repeat(101), "-dash"]) {
    expect(() => recorder.startTrajectory(name), name).toThrow("agentId must have");
    expect(() => recorder.startTrajectory("a", { trajectoryId: name }), name).toThrow("trajectoryId must have");
  }
  expect(() => recorder.startTrajectory("a", { startedAt: new Date("never") })).toThrow("valid Date");
  expect(() => recorder.startTrajectory("a", { scenarioId: "x".repeat(101) })).toThrow("at most 100");
  const trajectory = recorder.startTrajectory("a");
  const step = trajectory.step(ACCOUNTS);
  expect(() => step.logLLMCall({ ...CALL, completionLogprobs: [-1] })).toThrow("3 completion token ids but 1");
  expect(() => trajectory.step({ shares: 10n })).toThrow(TypeError);
  expect(() => step.completeStep(BUY, Number.NaN)).toThrow("reward must be a finite number");
  step.completeStep(BUY);
  expect(() => step.completeStep(BUY)).toThrow("completed twice");
  await expect(trajectory.endTrajectory({ finalPnL: Infinity })).rejects.toThrow("finalPnL must be a finite number");
  await recorder.close();
  expect([recorder.delivered, recorder.rejected]).toEqual([0, 0]);
});

test("a trajectory is what it was when it was logged, and ends once", async () => {
  const client = await hindsightOf("agent", "changeable");
  const recorder = await client.recorder({ spool: await folder() });
  const [trajectory, state] = [recorder.startTrajectory("changeable"), { agentBalance: 1 }];
  const step = trajectory.step(state);
  state.agentBalance = 2;
  step.completeStep(BUY);
  const ended = await Promise.allSettled([trajectory.endTrajectory(), trajectory.endTrajectory()]);
  expect(ended.map((one) => one.status)).toEqual(["fulfilled", "rejected"]);
  await recorder.close();
  const [row, ...others] = await storedRows(served.database, "changeable");
  expect([row?.stepsJson.includes('"agentBalance":1'), others]).toEqual([true, []]);
});
