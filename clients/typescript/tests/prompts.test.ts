/** The prompt that an agent was given: asked for now and then, kept while the server is away. */
import { expect, test } from "vitest";

import { type CurrentPrompt, Hindsight, promptMessages } from "../src/index.js";
import { hindsightOf, refusal, serving } from "./console.js";

const PROMPT: CurrentPrompt = {
  role: "trader",
  prompt_id: "p-0123456789abcdef",
  text: "[task]\nYou are {name}.",
  system: "You are {name}. Reply with {format_} or {nothing}.",
  examples: [{ user: "$COIN up", assistant: "BUY" }],
  variables: ["format_", "name", "nothing"],
  prompt_version: "prompts-1",
  release: "hindsight@step3",
};

test("a prompt becomes the beginning of a conversation, and a variable without a value stays", () => {
  expect(promptMessages(PROMPT, { name: "Ann", format_: "BUY", constructor: "x" })).toEqual([
    { role: "system", content: "You are Ann. Reply with BUY or {nothing}." },
    { role: "user", content: "$COIN up" },
    { role: "assistant", content: "BUY" },
  ]);
  expect(promptMessages({ ...PROMPT, system: "", examples: [] })).toEqual([]);
});

test("a prompt is asked for once and stays while the server is away; an empty one is the game's own", async () => {
  const asked: string[] = [];
  let answer: CurrentPrompt | null = PROMPT;
  const url = await serving((request, response) => {
    asked.push(request.url ?? "");
    response.writeHead(answer === null ? 503 : 200).end(JSON.stringify(answer ?? {}));
  });
  const lasting = new Hindsight({ url });
  for (let time = 0; time < 3; time += 1)
    expect(await lasting.prompts.forDecision("agent-1", "trader")).toEqual(PROMPT);
  expect(asked).toEqual(["/api/v1/prompts/current?agent_id=agent-1&role=trader"]);

  const { prompts } = new Hindsight({ url, prompts: { refreshMs: 0, timeoutMs: 30_000 } });
  expect(await prompts.forDecision("agent-1")).toEqual(PROMPT);
  answer = null;
  expect(await prompts.forDecision("agent-1")).toEqual(PROMPT);
  expect(prompts.missed).toBe(1);
  answer = { ...PROMPT, prompt_id: "", text: null, system: null };
  expect(await prompts.forDecision("agent-1")).toBe(null);
});

test("the console tells an agent its prompt", async () => {
  const { prompts } = await hindsightOf("agent", "prompted");
  expect(await prompts.current("prompted", "trader")).toMatchObject({ prompt_id: "", text: null, examples: [] });
  expect((await refusal(prompts.current("another"))).status).toBe(403);
});
