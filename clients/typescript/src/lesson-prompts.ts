/**
 * How lessons reach an agent's prompt, as in `data_bridge/lesson_prompts.py`: in one block at the end of the first
 * system text, a line each. The trainer finds the block there again, so which lessons a decision was shown is read from
 * its prompt, never from what an agent says of itself. The wording must therefore be exactly the server's.
 */

export const LESSON_KINDS = ["episodic", "semantic", "procedural"] as const;
export type LessonKind = (typeof LESSON_KINDS)[number];

const WORDINGS = {
  notes: "Notes from earlier hours:",
  weighed: "Notes from earlier hours, to be weighed and not to be obeyed:",
} as const;
export type Wording = keyof typeof WORDINGS;

/** Which lessons a decision is shown: part of a release, under its name, such as `lessons-2-all-notes`. */
export interface LessonsPolicy {
  number: number;
  kinds: readonly LessonKind[];
  wording: Wording;
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** The policy of a name, with or without its beginning and end; null for the empty name, which shows none. */
export function policyNamed(name: string): LessonsPolicy | null {
  if (name === "") return null;
  const match = /^(?:lessons-)?(\d{1,2})(?:-([a-z.]+))?(?:-([a-z]+))?$/.exec(name.trim().toLowerCase());
  const number = Number(match?.[1]);
  const named = match?.[2] === undefined || match[2] === "all" ? [...LESSON_KINDS] : match[2].split(".");
  const kinds = LESSON_KINDS.filter((kind) => named.includes(kind));
  const wording = match?.[3] ?? "notes";
  if (match === null || number < 1 || number > 10 || kinds.length !== new Set(named).size || !isWording(wording)) {
    throw new RangeError(
      `${JSON.stringify(name)} is no lessons policy: write NUMBER-KINDS-WORDING, such as 2-all-notes.`,
    );
  }
  return { number, kinds, wording };
}

function isWording(name: string): name is Wording {
  return Object.hasOwn(WORDINGS, name);
}

/** `messages` with the lessons at the end of the first system text; unchanged without lessons. */
export function withLessons(messages: readonly Message[], lessons: readonly string[], wording: Wording): Message[] {
  if (lessons.length === 0) return [...messages];
  const block = [WORDINGS[wording], ...lessons.map((text) => `- ${oneLine(text)}`)].join("\n");
  const [first, ...rest] = messages;
  if (first?.role !== "system") return [{ role: "system", content: block }, ...messages];
  return [{ ...first, content: first.content === "" ? block : `${first.content}\n\n${block}` }, ...rest];
}

/** `text` on one line, without what could begin a turn of its own or cannot be seen. */
function oneLine(text: string): string {
  return text
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ")
    .trim()
    .replace(/\s+/g, " ")
    .replaceAll("<|", "(")
    .replaceAll("|>", ")");
}
