/**
 * What the client does, in a minute: `npm run demo`.
 *
 * With HINDSIGHT_URL and HINDSIGHT_KEY it talks to that console. The policy is the real service if this checkout has an
 * environment for it, otherwise a simulated one; `--simulated` uses no Python at all. Whatever is simulated says so.
 */
import { existsSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { SimulatedPolicy } from "./simulated-policy.js";
import {
  type Environment,
  Hindsight,
  type Message,
  type Mutation,
  RLInterface,
  RLTrainer,
  type State,
} from "./src/index.js";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const AGENT = "demo-agent";
const BUFFER = 64;
const isSimulated = process.argv.includes("--simulated");

/** A game in which the judged score of a mutated prompt is a table. */
class SimulatedPrompts implements Environment {
  static readonly state: State = { embedding: Array.from({ length: 1536 }, (_, place) => Math.cos(place) / 28) };

  reset(): State {
    return SimulatedPrompts.state;
  }

  apply(mutation: Mutation): { state: State; reward: number; done: boolean } {
    const reward = mutation === "expansion" ? 0.5 : mutation === "keep" ? 0 : -0.1;
    return { state: SimulatedPrompts.state, reward, done: true };
  }
}

/** An agent that decides three times and records it. */
async function recordAnHour(spool: string): Promise<void> {
  const { HINDSIGHT_URL: url, HINDSIGHT_KEY: key } = process.env;
  const hasConsole = url !== undefined && !isSimulated;
  const hindsight = new Hindsight({ url: hasConsole ? url : "http://127.0.0.1:9", key });
  const recorder = await hindsight.recorder({ spool, patienceMs: hasConsole ? 30_000 : 0, onProblem: console.log });
  await recorder.record(AGENT, async (trajectory) => {
    for (const headline of ["$COIN gets a big award", "$ACME recalls its cars", "$COIN opens a shop"]) {
      const asked: Message[] = [
        { role: "system", content: "You trade. Reply with BUY or SELL and a name." },
        { role: "user", content: headline },
      ];
      const { messages, shown } = hasConsole
        ? await hindsight.lessons.put(asked, { agentId: AGENT, asOf: new Date() })
        : { messages: asked, shown: [] };
      const response = simulatedModel(headline);
      console.log(`SIMULATED model: ${headline} -> ${response} (${shown.length} lessons shown)`);
      const step = trajectory.step({ agentBalance: 1000, agentPnL: 0, openPositions: 0 });
      step.logLLMCall({ model: "simulated", messages, response });
      step.completeStep({ actionType: response.split(" ")[0] ?? "HOLD", success: true });
    }
  });
  await recorder.close();
  if (hasConsole) {
    console.log(`Delivered ${recorder.delivered} trajectory to ${url}, refused ${recorder.rejected}.`);
    const { release } = await hindsight.lessons.policy(AGENT);
    console.log(`The agent was given ${release ?? "no release yet"}.`);
  } else {
    const kept = (await readdir(spool)).filter((name) => name.endsWith(".spool"));
    console.log(
      `No console was given: the trajectory waits in ${kept.length} file of the spool for the next recorder.`,
    );
  }
}

function simulatedModel(headline: string): string {
  const [name = "nothing"] = headline.split(" ");
  return headline.includes("recalls") ? `SELL ${name}` : `BUY ${name}`;
}

/** The policy learns which mutation helps prompts that lack examples. */
async function learnAboutPrompts(home: string): Promise<void> {
  const python = join(ROOT, ".venv", "bin", "python");
  const hasService = !isSimulated && existsSync(join(ROOT, "scripts", "prompts.py")) && existsSync(python);
  const simulated = hasService ? null : new SimulatedPolicy(BUFFER);
  const flags = ["--policy-buffer", String(BUFFER)];
  const rl =
    simulated === null
      ? new RLInterface({ server: { directory: ROOT, home, flags, startTimeoutMs: 240_000 } })
      : new RLInterface({ url: await simulated.open(), key: simulated.key });
  const trainer = new RLTrainer(rl, new SimulatedPrompts(), {
    onUpdate: ({ version }) => console.log(`The policy is version ${version} now.`),
  });
  console.log(hasService ? "The policy is the real service." : "SIMULATED policy: a table in this process, not PPO.");
  console.log("SIMULATED rewards: expansion is worth 0.5, keep 0, everything else -0.1.");
  try {
    await trainer.start();
    const { episodes, meanReward, mutations } = await trainer.train(3 * BUFFER);
    console.log(`${episodes} episodes, mean reward ${(meanReward ?? 0).toFixed(2)}: ${JSON.stringify(mutations)}`);
    const { names, probabilities } = await rl.getDistribution(SimulatedPrompts.state);
    console.log(names.map((name, place) => `${name} ${(probabilities[place] ?? 0).toFixed(2)}`).join(", "));
  } finally {
    await trainer.stop();
    await simulated?.close();
  }
}

const folder = await mkdtemp(join(tmpdir(), "hs-demo-"));

try {
  await recordAnHour(join(folder, "spool"));
  await learnAboutPrompts(join(folder, "home"));
} finally {
  await rm(folder, { recursive: true, force: true });
}
