/** The policy's client, against the stand-in and against the real service. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";

import { SimulatedPolicy } from "../simulated-policy.js";
import { type Environment, MUTATIONS, type Mutation, RLInterface, RLTrainer, type State } from "../src/index.js";
import { folder, refusal, served } from "./console.js";
import { PYTHON, ROOT } from "./python.js";

const BUFFER = 64;
const EMBEDDING = Array.from({ length: 1536 }, (_, place) => Math.sin(place));

/** Expansion helps, everything else does harm; an episode ends with the first mutation. */
class Bandit implements Environment {
  played: Mutation[] = [];

  reset(): State {
    return { embedding: EMBEDDING };
  }

  apply(mutation: Mutation, state: State): { state: State; reward: number; done: boolean } {
    this.played.push(mutation);
    return { state, reward: mutation === "expansion" ? 1 : -0.2, done: true };
  }
}

interface Opened {
  rl: RLInterface;
  url: string;
  close(): Promise<void>;
}

async function standIn(): Promise<Opened> {
  const policy = new SimulatedPolicy(BUFFER);
  const url = await policy.open();
  return { rl: new RLInterface({ url, key: policy.key }), url, close: () => policy.close() };
}

const KEY = "the-key-of-the-tests-of-the-policy";

async function real(): Promise<Opened> {
  const home = await mkdtemp(join(tmpdir(), "hs-rl-"));
  const environment = { DATABASE_URL: served.database, HINDSIGHT_CONSOLE_KEY: KEY, OMP_NUM_THREADS: "1" };
  const flags = ["--policy-buffer", String(BUFFER)];
  const rl = new RLInterface({ server: { directory: ROOT, python: PYTHON, home, flags, environment } });
  const close = async (): Promise<void> => {
    await rl.stopServer();
    await rm(home, { recursive: true, force: true });
  };
  const [url, same] = await Promise.all([rl.startServer(), rl.startServer()]);
  expect(same).toBe(url); // one service, however many call at once
  return { rl, url, close };
}

describe.each([
  ["the simulated policy", standIn],
  ["the real service", real],
])("%s", (_, open) => {
  describe("answers", () => {
    let opened: Opened;

    beforeAll(async () => {
      opened = await open();
    });
    afterAll(() => opened.close());

    test("an action is selected with its probability, under the mask that was given", async () => {
      const { rl } = opened;
      const mask = [true, false, true, true, false, true];
      const selected = await rl.selectAction({ embedding: EMBEDDING, action_mask: mask });
      expect(selected.name).toBe(MUTATIONS[selected.action]);
      expect(selected.action_mask).toEqual(mask);
      expect(selected.probabilities.reduce((sum, one) => sum + one, 0)).toBeCloseTo(1, 5);
      expect(selected.probabilities.map((one) => one > 0)).toEqual(mask);
      expect(selected.log_prob).toBeCloseTo(Math.log(selected.probabilities[selected.action] ?? 0), 4);
      const distribution = await rl.getDistribution({ embedding: EMBEDDING, action_mask: mask });
      expect(distribution.names).toEqual([...MUTATIONS]);
      for (const [place, one] of distribution.probabilities.entries()) {
        expect(one).toBeCloseTo(selected.probabilities[place] ?? -1, 5);
      }
    });

    test("a mutation is selected for a prompt, by its name", async () => {
      const selected = await opened.rl.selectMutation("You are a trader.\n\nReply with BUY, SELL or HOLD.", {
        deterministic: true,
      });
      expect(MUTATIONS).toContain(selected.mutation);
      expect(selected.embedding).toHaveLength(1536);
      const mask = [true, false, false, true, false, false];
      const told = await opened.rl.selectAction({ prompt: "You are a trader.", action_mask: mask });
      expect([told.action_mask, told.probabilities.map((one) => one > 0)]).toEqual([mask, mask]);
    });

    test("what is wrong is refused with its field", async () => {
      const { rl, url } = opened;
      const short = await refusal(rl.selectAction({ embedding: [1, 2, 3] }));
      expect([short.status, short.code, short.field]).toEqual([422, "invalid", expect.stringContaining("embedding")]);
      const unknown = await refusal(rl.loadCheckpoint("never-saved"));
      expect([unknown.status, unknown.code]).toEqual([404, "not_found"]);
      const stranger = await refusal(new RLInterface({ url, key: "a-stranger-with-a-long-key" }).stats());
      expect([stranger.status, stranger.code]).toEqual([401, "no_key"]);
    });

    test("the same experience twice is stored once", async () => {
      const { rl } = opened;
      const { version } = await rl.selectAction({ embedding: EMBEDDING });
      const experience = {
        embedding: EMBEDDING,
        action: 3,
        reward: 0.5,
        done: true,
        version,
        experience_id: "only-once",
      };
      const [first, again] = [await rl.storeExperience(experience), await rl.storeExperience(experience)];
      expect([first.stored, again.stored, again.waiting]).toEqual([true, false, first.waiting]);
    });

    test("a checkpoint is kept under a name and gone on from, as a new version", async () => {
      const { rl } = opened;
      const before = await rl.getDistribution({ embedding: EMBEDDING });
      const saved = await rl.saveCheckpoint("before-training");
      const loaded = await rl.loadCheckpoint("before-training");
      expect([loaded.from_version, loaded.version > saved.version]).toEqual([saved.version, true]);
      expect((await rl.getDistribution({ embedding: EMBEDDING })).probabilities).toEqual(before.probabilities);
      expect((await rl.stats()).saved).toContain("before-training");
    });

    test("a trainer plays episodes, updates the policy when there is enough, and counts what happened", async () => {
      const { rl } = opened;
      const before = await rl.stats();
      const [bandit, updates] = [new Bandit(), [] as number[]];
      const trainer = new RLTrainer(rl, bandit, { onUpdate: (update) => updates.push(update.version) });
      await expect(trainer.train(1)).rejects.toThrow("call start first");
      await trainer.start();
      const statistics = await trainer.train(BUFFER + 6);
      expect([statistics.episodes, statistics.steps]).toEqual([BUFFER + 6, BUFFER + 6]);
      expect([statistics.updates, updates.length, statistics.lastUpdate?.state]).toEqual([1, 1, "updated"]);
      expect(Object.values(statistics.mutations).reduce((sum, one) => sum + one, 0)).toBe(BUFFER + 6);
      expect(statistics.mutations.expansion).toBe(bandit.played.filter((one) => one === "expansion").length);
      const after = await rl.stats();
      expect(after.experience.received - before.experience.received).toBe(BUFFER + 6);
      expect(after.experience.received).toBe(
        after.experience.trained + after.experience.waiting + after.experience.stale,
      );
    });
  });
});

test("the simulated policy learns which mutation helps", async () => {
  const { rl, close } = await standIn();
  onTestFinished(close);
  const trainer = new RLTrainer(rl, new Bandit());
  await trainer.start();
  const { updates } = await trainer.train(4 * BUFFER);
  expect(updates).toBe(4);
  expect((await rl.getDistribution({ embedding: EMBEDDING })).probabilities[3]).toBeGreaterThan(0.9);
});

/** An environment that never ends an episode by itself. */
class Endless implements Environment {
  step = 0;

  constructor(private readonly breaksAt = 0) {}

  reset(): State {
    this.step = 0;
    return { prompt: "p" };
  }

  apply(): { state: State; reward: number; done: boolean } {
    this.step += 1;
    if (this.step === this.breaksAt) throw new Error("the judge is away");
    return { state: { prompt: "q" }, reward: 0.25, done: false };
  }
}

test("an episode ends with keep or after five mutations", async () => {
  const { rl, close } = await standIn();
  onTestFinished(close);
  const lengths = new Set<number>();
  while (!lengths.has(5) || lengths.size < 2) {
    const { mutations, totalReward } = await rl.trainEpisode(new Endless());
    expect(totalReward).toBe(0.25 * mutations.length);
    expect(mutations.slice(0, -1)).not.toContain("keep");
    expect(mutations.length === 5 || mutations.at(-1) === "keep").toBe(true);
    lengths.add(mutations.length);
  }
});

test("an episode that fails leaves nothing behind", async () => {
  const { rl, close } = await standIn();
  onTestFinished(close);
  let received = 0;
  for (let failed = false; !failed; ) {
    const environment = new Endless(3);
    try {
      received += (await rl.trainEpisode(environment)).mutations.length; // the policy kept before it could fail
    } catch (error) {
      expect(String(error)).toContain("the judge is away");
      failed = true;
    }
  }
  expect((await rl.stats()).experience.received).toBe(received);
});

test("a trainer that is stopped finishes the episode in hand", async () => {
  const { rl, close } = await standIn();
  onTestFinished(close);
  const trainer: RLTrainer = new RLTrainer(rl, new Bandit(), {
    onEpisode: (_, { episodes }) => void (episodes === 3 && trainer.stop()),
  });
  await trainer.start();
  expect((await trainer.train(1000)).episodes).toBe(3);
});

test("a service that cannot be started says so in a sentence", async () => {
  const missing = new RLInterface({ server: { directory: await folder(), python: PYTHON } });
  await expect(missing.startServer()).rejects.toThrow(/ended with 2: .*No such file/);
  await expect(missing.startServer()).rejects.toThrow();
  const nowhere = new RLInterface({ server: { directory: ROOT, python: "/no/such/python" } });
  await expect(nowhere.startServer()).rejects.toThrow("cannot be started");
  expect(() => new RLInterface({})).toThrow("Give the url of a service");
  expect(() => nowhere.stats()).toThrow("call startServer first");
});
