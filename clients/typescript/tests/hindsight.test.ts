/** Lessons, advice, rewards and trainings over the real API. */
import { expect, test } from "vitest";

import { Hindsight, type Message, policyNamed, withLessons } from "../src/index.js";
import { hindsight, hindsightOf, refusal, served, serving } from "./console.js";
import { python } from "./python.js";

const ASKED: Message[] = [
  { role: "system", content: "You trade." },
  { role: "user", content: "a strike at the harbour" },
];
const NOW = new Date();

// Lessons

test("a lesson is stored once, and looked up with its sources", async () => {
  const { lessons } = await hindsightOf("agent", "lesson-agent");
  const lesson = { agent_id: "lesson-agent", memory_type: "semantic", content: "Sell before the fair." } as const;
  const [first, again] = [await lessons.store(lesson), await lessons.store(lesson)];
  expect([first.duplicate, again.duplicate, again.id]).toEqual([false, true, first.id]);
  expect(first.shown, "from outside: not before it is gated").toBe(false);

  const found = await lessons.retrieve({ agent_id: "lesson-agent", context: "a strike", k: 3 });
  expect(found.items.map((item) => item.content)).toEqual(["strike means sell"]);
  expect(found.items[0]?.sources[0]?.trajectory_id).toBe("trajectory-1");
});

test("an agent's key is for that agent alone", async () => {
  const { lessons } = await hindsightOf("agent", "agent-a");
  const refused = await refusal(lessons.policy("agent-b"));
  expect([refused.status, refused.code, refused.field]).toEqual([403, "not_allowed", "agent_id"]);
});

test("lessons stand in the prompt where the trainer finds them, and only if they were known by then", async () => {
  const client = hindsight(served.full, { lessons: { policy: "2-all-notes", timeoutMs: 30_000 } });
  const { messages, shown } = await client.lessons.put(ASKED, { agentId: "agent-1", asOf: NOW });
  expect(shown.map((lesson) => lesson.text)).toEqual(["A lesson: strike means sell"]);
  expect(messages[0]?.content).toBe("You trade.\n\nNotes from earlier hours:\n- A lesson: strike means sell");

  const before = await client.lessons.put(ASKED, { agentId: "agent-1", asOf: new Date("2026-03-01T00:00:00Z") });
  expect(before).toEqual({ messages: ASKED, shown: [] });
  expect([client.lessons.asked, client.lessons.missed]).toEqual([2, 0]);
});

test("a prompt with lessons is word for word what the server's own code makes of it", async () => {
  const texts = [
    "plain",
    "two\nlines  and\u2028more",
    "<|im_end|> \u200b\u0000 tail ",
    "\u00a0 é \u3000 x\ud83d\ude00",
  ];
  const cases = [
    ASKED,
    [],
    [{ role: "system", content: "" }] as Message[],
    [{ role: "user", content: "u" }] as Message[],
  ];
  const ours = cases.map((messages) => withLessons(messages, texts, "weighed"));
  expect(JSON.parse(await python(["-c", PUT, JSON.stringify([cases, texts])]))).toEqual(ours);
});

const PUT = `
import json, sys
from data_bridge.lesson_prompts import with_lessons
from data_bridge.models import ChatMessage
cases, texts = json.loads(sys.argv[1])
made = [with_lessons([ChatMessage(**one) for one in case], texts, "weighed") for case in cases]
print(json.dumps([[{"role": one.role, "content": one.content} for one in messages] for messages in made]))
`;

test("the name of a policy says everything, and another name is refused", () => {
  expect(policyNamed("lessons-3-semantic.procedural-weighed")).toEqual({
    number: 3,
    kinds: ["semantic", "procedural"],
    wording: "weighed",
  });
  expect(policyNamed("2")).toEqual({ number: 2, kinds: ["episodic", "semantic", "procedural"], wording: "notes" });
  expect(policyNamed("")).toBe(null);
  for (const name of ["0-all-notes", "11", "2-gossip-notes", "2-all-shouted", "two"]) {
    expect(() => policyNamed(name), name).toThrow("is no lessons policy");
  }
});

test("without a policy the agent has the promoted release's, which shows none here", async () => {
  const client = hindsight();
  expect(await client.lessons.policy("agent-1")).toMatchObject({ lessons_policy: "" });
  expect((await client.lessons.put(ASKED, { agentId: "agent-1", asOf: NOW })).messages).toEqual(ASKED);
  expect(client.lessons.missed).toBe(0);
});

test("a server that does not answer costs a decision its lessons and nothing else", async () => {
  const url = await serving(() => undefined);
  const client = new Hindsight({ url, lessons: { timeoutMs: 50 }, prompts: { timeoutMs: 50 } });
  expect(await client.lessons.put(ASKED, { agentId: "agent-1", asOf: NOW })).toEqual({ messages: ASKED, shown: [] });
  expect(await client.prompts.forDecision("agent-1", "trader")).toBe(null);
  expect([client.lessons.missed, client.prompts.missed]).toEqual([1, 1]);
});

// Advice, rewards, trainings

test("advice that nothing serves is an abstention, and nobody takes what was not shown", async () => {
  const { advice } = await hindsightOf("agent", "advised");
  const given = await advice.ask({ agent_id: "advised", observation: "$COIN up to 214" });
  expect([given.abstained, given.proposal]).toEqual([true, null]);
  const refused = await refusal(advice.outcome(given.advice_id, { taken: true }));
  expect([refused.status, refused.code]).toEqual([409, "conflict"]);
});

test("a result is judged once, and rewards that were trained are read page by page", async () => {
  const { rewards } = hindsight();
  const toJudge = { task_result: { task: "Add 2 and 2.", result: "4" }, max_cost: 1 };
  const [first, again] = [await rewards.calculate(toJudge), await rewards.calculate(toJudge)];
  expect([first.cached, again.cached, again.score]).toEqual([false, true, first.score]);

  const agents = new Set<string>();
  let entries = 0;
  for await (const entry of rewards.all({ limit: 2 })) {
    agents.add(entry.agent_id);
    entries += 1;
  }
  expect([entries, [...agents].sort()]).toEqual([9, ["agent-1", "agent-2", "agent-3"]]);
});

test("a training is asked for once by its key, refused beside another, and stopped", async () => {
  const [{ training }, model] = [hindsight(), "typescript"];
  const first = await training.start({ model, max_cost: 1 }, "monday");
  const again = await training.start({ model, max_cost: 1 }, "monday");
  expect([first.state, again.run_id]).toEqual(["waiting", first.run_id]);
  expect((await training.status(model)).state).toBe("waiting");
  const refused = await refusal(training.start({ model, batch_size: 3 }));
  expect([refused.status, refused.code]).toEqual([409, "conflict"]);
  expect((await training.stop("a test", model)).run_id).toBe(first.run_id);
  expect((await training.status(model)).state).toBe("idle");
});

test("every other call is there with its types", async () => {
  const { entries } = await hindsight(served.read).console.call("get", "/releases");
  expect(entries.length).toBeGreaterThan(0);
});

// Refusals

test("a refusal has the server's sentence, code and field, and never the key", async () => {
  const wrong = await refusal(hindsight("a-wrong-key-of-this-test").training.status());
  expect([wrong.status, wrong.code]).toEqual([401, "no_key"]);
  const field = await refusal(hindsight().training.start({ batch_size: 0 }));
  expect([field.status, field.code, field.field]).toEqual([422, "invalid", "batch_size"]);
  const looking = await refusal(hindsight(served.read).training.start());
  expect([looking.status, looking.code]).toEqual([403, "not_allowed"]);
  const nobody = await refusal(new Hindsight({ url: "http://127.0.0.1:9", key: served.full }).training.stop());
  expect([nobody.status, nobody.code]).toEqual([0, "unreachable"]);
  for (const error of [wrong, field, looking, nobody]) {
    expect(JSON.stringify({ ...error, said: error.stack })).not.toContain(served.full);
  }
  const page = await serving((_, answer) => void answer.end("<html>A gateway's page</html>"));
  expect((await refusal(new Hindsight({ url: page }).training.status())).message).toBe(
    "What answered is not Hindsight: check the url.",
  );
  expect(() => new Hindsight({ url: "http://user:secret@127.0.0.1" })).toThrow("give the key as `key`");
});

test("a call that is safe to repeat is repeated when the server is busy, another is not", async () => {
  const asked: string[] = [];
  const url = await serving((request, answer) => {
    asked.push(`${request.method ?? ""} ${request.url ?? ""}`);
    const isBusy = asked.length === 1 || request.method === "POST";
    answer.writeHead(isBusy ? 503 : 200, { "retry-after": "0" }).end('{"state": "idle"}');
  });
  const { training } = new Hindsight({ url });
  expect((await training.status()).state).toBe("idle");
  expect((await refusal(training.stop())).status).toBe(503);
  expect(asked).toEqual(["GET /api/v1/training/status", "GET /api/v1/training/status", "POST /api/v1/training/stop"]);
});
