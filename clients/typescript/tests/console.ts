/** Clients of the tests' console, and keys and folders for them. */
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { inject, onTestFinished } from "vitest";

import { Hindsight, HindsightError, type HindsightOptions } from "../src/index.js";

export const served = inject("served");

export function hindsight(key: string = served.full, options: Partial<HindsightOptions> = {}): Hindsight {
  return new Hindsight({ url: served.url, key, ...options });
}

/** An ingest key. */
export async function keyOf(kind: "agent" | "team" | "game", owner: string): Promise<string> {
  return (await hindsight().console.call("post", "/ingest/keys", { body: { kind, owner } })).key;
}

/** A client with an ingest key of its own. */
export async function hindsightOf(
  kind: "agent" | "team" | "game",
  owner: string,
  url = served.url,
): Promise<Hindsight> {
  return new Hindsight({ url, key: await keyOf(kind, owner) });
}

/** A folder that is removed after the test; short enough for a socket's path. */
export async function folder(): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), "hs-"));
  onTestFinished(() => rm(made, { recursive: true, force: true }));
  return made;
}

/** The address of a server of the test's own. */
export async function serving(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, "127.0.0.1");
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  await new Promise((listening) => server.once("listening", listening));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** How a call was refused. */
export async function refusal(call: Promise<unknown>): Promise<HindsightError> {
  const thrown = await call.then(
    () => null,
    (error: unknown) => error,
  );
  if (!(thrown instanceof HindsightError)) throw new Error(`the call was not refused: ${String(thrown)}`);
  return thrown;
}
