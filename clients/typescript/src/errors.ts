/** Every failed call is one of these: by `code` for programs, by `message` for people. No error holds a key. */
export class HindsightError extends Error {
  override readonly name = "HindsightError";

  constructor(
    message: string,
    /** The HTTP status; 0 if there was no answer. */
    readonly status: number,
    /** One word, such as `conflict`, `invalid`, `too_many`; `unreachable` if there was no answer. */
    readonly code: string,
    /** The part of the request that is wrong, if it is one. */
    readonly field: string | null = null,
    /** After how many milliseconds the server wants to be asked again, if it said so. */
    readonly retryAfterMs: number | null = null,
  ) {
    super(message);
  }
}

/** What went wrong, in one sentence, whatever was thrown. */
export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
