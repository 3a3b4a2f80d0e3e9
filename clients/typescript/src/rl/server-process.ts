import { type ChildProcess, spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

import { sentence } from "../errors.js";

/** How the service is started from a checkout of Hindsight. */
export interface ServerOptions {
  /** The checkout, with its environment made by `make setup`. */
  directory: string;
  /** Default: the checkout's own environment. */
  python?: string;
  /** Default: a free one. */
  port?: number;
  /** The server's home; default: its own, `.hindsight` of the checkout. */
  home?: string;
  /** More flags of `scripts/prompts.py serve`, such as `--policy-buffer 128`. */
  flags?: readonly string[];
  /** Added to the environment, which is how a key or a DATABASE_URL is passed: arguments can be read by others. */
  environment?: Readonly<Record<string, string>>;
  /** How long it may take until it answers. Default: 60,000. */
  startTimeoutMs?: number;
}

interface Ready {
  event: string;
  url: string;
  keys: string | null;
}

const STOP_MS = 10_000;
const KEPT_WORDS = 4_000;

/** `scripts/prompts.py serve` as a process of ours. It ends with us, if we end in an orderly way. */
export class ServerProcess {
  readonly #child: ChildProcess;
  readonly #endWithUs = (): void => void this.#child.kill();

  private constructor(
    child: ChildProcess,
    readonly url: string,
    readonly key: string,
  ) {
    this.#child = child;
    process.once("exit", this.#endWithUs);
  }

  /** Returns when requests are answered. Error with the server's own sentence if it ends instead. */
  static async start(options: ServerOptions): Promise<ServerProcess> {
    const directory = resolve(options.directory);
    const python = options.python ?? join(directory, ".venv", "bin", "python");
    const home = options.home === undefined ? [] : ["--home", options.home];
    const words = ["scripts/prompts.py", "serve", "--json", "--port", String(options.port ?? 0), ...home];
    const child = spawn(python, [...words, ...(options.flags ?? [])], {
      cwd: directory,
      env: { ...withoutOurOwn(process.env), ...options.environment },
      stdio: ["ignore", "pipe", "pipe"],
    });
    try {
      const { url, keys } = await ready(child, options.startTimeoutMs ?? 60_000);
      const key = options.environment?.["HINDSIGHT_CONSOLE_KEY"] ?? process.env["HINDSIGHT_CONSOLE_KEY"];
      return new ServerProcess(child, url, keys === null ? (key ?? "") : await fullKey(resolve(directory, keys)));
    } catch (error) {
      await end(child);
      throw error;
    }
  }

  /** Ask it to stop, and wait until it has. */
  async stop(): Promise<void> {
    process.off("exit", this.#endWithUs);
    await end(this.#child);
  }
}

/** The environment without the address and the key by which we may know a console: they are not settings of a server. */
function withoutOurOwn(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const { HINDSIGHT_URL: _url, HINDSIGHT_KEY: _key, ...rest } = environment;
  return rest;
}

async function ready(child: ChildProcess, timeoutMs: number): Promise<Ready> {
  let said = "";
  child.stderr?.on("data", (part: Buffer) => {
    said = (said + part.toString()).slice(-KEPT_WORDS);
  });
  return await new Promise<Ready>((started, failed) => {
    const timer = setTimeout(
      () => failed(new Error(`The prompts service did not answer in ${timeoutMs} ms.`)),
      timeoutMs,
    );
    const fail = (why: string): void => {
      clearTimeout(timer);
      failed(new Error(why));
    };
    child.once("error", (error) => fail(`The prompts service cannot be started: ${sentence(error)}.`));
    child.once("close", (code) => fail(`The prompts service ended with ${String(code)}: ${said.trim()}`));
    if (child.stdout === null) return;
    createInterface({ input: child.stdout }).on("line", (line) => {
      const found = readyIn(line);
      if (found === null) return;
      clearTimeout(timer);
      started(found);
    });
  });
}

function readyIn(line: string): Ready | null {
  try {
    const said = JSON.parse(line) as Partial<Ready> | null;
    return said?.event === "ready" && said.url !== undefined
      ? { event: "ready", url: said.url, keys: said.keys ?? null }
      : null;
  } catch {
    return null; // another line than the one we wait for
  }
}

async function fullKey(path: string): Promise<string> {
  const keys = JSON.parse(await readFile(path, "utf8")) as { full: string };
  return keys.full;
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  await new Promise<void>((ended) => {
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    child.once("exit", () => {
      clearTimeout(timer);
      ended();
    });
    child.kill("SIGTERM");
  });
}
