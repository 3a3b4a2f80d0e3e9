import { setTimeout as pause } from "node:timers/promises";

import { HindsightError, sentence } from "./errors.js";

/** Where a server is, and who asks. */
export interface ConnectionOptions {
  /** Such as `http://127.0.0.1:8899`, with the path of a proxy if there is one. */
  url: string;
  /** The console's full or read-only key, or an ingest key of an agent, a team or the game. */
  key?: string | undefined;
  /** How long one attempt may take. Default: 30,000. */
  timeoutMs?: number | undefined;
}

type Method = "get" | "post" | "delete";
type Json<T> = T extends { content: { "application/json": infer Value } } ? Value : never;
type At<T, Name extends string> = T extends { [Key in Name]?: infer Value } ? NonNullable<Value> : never;

/** The operation of a generated `paths` type. */
export type Operation<Paths, Path extends keyof Paths, M extends Method> = M extends keyof Paths[Path]
  ? NonNullable<Paths[Path][M]>
  : never;
export type BodyOf<O> = Json<At<O, "requestBody">>;
export type QueryOf<O> = At<At<O, "parameters">, "query">;
export type PartsOf<O> = At<At<O, "parameters">, "path">;
export type AnswerOf<O> = O extends { responses: infer R }
  ? { [Status in keyof R]: Status extends 200 | 201 | 202 ? Json<R[Status]> : never }[keyof R]
  : never;

export interface Call<O> {
  body?: BodyOf<O>;
  query?: QueryOf<O>;
  /** The parts of the path that are in braces. */
  parts?: PartsOf<O>;
  headers?: Record<string, string>;
  timeoutMs?: number | undefined;
  /** Whether asking again changes nothing: such a call is repeated when there is no answer. Default: for `get`. */
  repeatable?: boolean;
}

const ATTEMPTS = 3;
const PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 10_000;

/** One server with one key. `Paths` is what openapi-typescript made of the server's OpenAPI document. */
export class Connection<Paths> {
  readonly #base: string;
  readonly #key: string | undefined;
  readonly #timeoutMs: number;

  /** `prefix` is what all paths of the document begin with, such as `/api/v1`. */
  constructor(options: ConnectionOptions, prefix = "") {
    const url = new URL(options.url);
    if (!["http:", "https:"].includes(url.protocol) || url.username !== "" || url.password !== "") {
      throw new TypeError("url: write http://HOST:PORT or https://HOST, and give the key as `key`.");
    }
    this.#base = url.origin + url.pathname.replace(/\/+$/, "") + prefix;
    this.#key = options.key;
    this.#timeoutMs = options.timeoutMs ?? 30_000;
  }

  /** The answer of a call; HindsightError for a refusal, or when there is no answer. */
  async call<M extends Method, Path extends keyof Paths & string>(
    method: M,
    path: Path,
    call: Call<Operation<Paths, Path, M>> = {},
  ): Promise<AnswerOf<Operation<Paths, Path, M>>> {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body);
    const answer = await this.send(method, addressed(path, call.parts, call.query), { ...call, body });
    return answer as AnswerOf<Operation<Paths, Path, M>>;
  }

  /** Like `call`, with a body that is JSON already. */
  async send(
    method: Method,
    path: string,
    request: {
      body?: string | undefined;
      headers?: Record<string, string>;
      timeoutMs?: number | undefined;
      repeatable?: boolean;
    },
  ): Promise<unknown> {
    const attempts = (request.repeatable ?? method === "get") ? ATTEMPTS : 1;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#once(
          method,
          path,
          request.body,
          request.headers ?? {},
          request.timeoutMs ?? this.#timeoutMs,
        );
      } catch (error) {
        if (attempt === attempts || !(error instanceof HindsightError) || !isPassing(error)) throw error;
        await pause(Math.min(error.retryAfterMs ?? PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS));
      }
    }
  }

  async #once(
    method: Method,
    path: string,
    body: string | undefined,
    headers: Record<string, string>,
    timeoutMs: number,
  ): Promise<unknown> {
    try {
      const answer = await fetch(this.#base + path, {
        method: method.toUpperCase(),
        headers: {
          ...(this.#key === undefined ? {} : { Authorization: `Bearer ${this.#key}` }),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        ...(body === undefined ? {} : { body }),
        redirect: "error", // the server never redirects, and the key is for nobody else
        signal: AbortSignal.timeout(timeoutMs),
      });
      const text = await answer.text();
      if (!answer.ok) throw refusal(answer, text);
      return parsed(text, answer.status);
    } catch (error) {
      if (error instanceof HindsightError) throw error;
      throw new HindsightError(`${this.#base} does not answer (${reason(error)}).`, 0, "unreachable");
    }
  }
}

/** Something answered, but in other words: a proxy's page, or another server. */
export function notHindsight(status: number): HindsightError {
  return new HindsightError("What answered is not Hindsight: check the url.", status, "unknown");
}

/** Whether the same call may succeed a little later: the server is away, restarting, or wants us to slow down. */
export function isPassing(error: HindsightError): boolean {
  return error.status === 0 || error.status === 408 || error.status === 429 || error.status >= 500;
}

function addressed(path: string, parts: object | undefined, query: object | undefined): string {
  const values = new Map(Object.entries(parts ?? {}));
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values.get(name))));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null) search.set(name, String(value));
  }
  return search.size === 0 ? filled : `${filled}?${search.toString()}`;
}

function parsed(text: string, status: number): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw notHindsight(status);
  }
}

function refusal(answer: Response, text: string): HindsightError {
  const { code, message, field } = problem(text);
  const said = Number(answer.headers.get("retry-after") ?? Number.NaN);
  const retryAfterMs = Number.isFinite(said) ? said * 1000 : null;
  const words = message ?? `The server answered ${answer.status}.`;
  return new HindsightError(words, answer.status, code ?? "unknown", field ?? null, retryAfterMs);
}

/** The parts of the server's one error shape; nothing of it if a proxy answered in its place. */
function problem(text: string): { code?: string; message?: string; field?: string | null } {
  try {
    const answer = JSON.parse(text) as { error?: { code?: string; message?: string; field?: string | null } } | null;
    return answer?.error ?? {};
  } catch {
    return {};
  }
}

function reason(error: unknown): string {
  if (error instanceof Error && error.name === "TimeoutError") return "no answer in time";
  const cause = error instanceof Error ? error.cause : undefined;
  if (cause instanceof Error && "code" in cause) return String(cause.code);
  return sentence(error);
}
