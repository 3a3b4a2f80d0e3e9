import type { AnswerOf, BodyOf, Operation } from "../connection.js";
import type { paths } from "../generated/prompts.js";

/** What the policy may do to a prompt, in the order of the service's indexes. */
export const MUTATIONS = [
  "keep",
  "try_catch",
  "context_reduction",
  "expansion",
  "constraint_addition",
  "task_decomposition",
] as const;
export type Mutation = (typeof MUTATIONS)[number];

/**
 * What the policy decides on: a prompt, or its embedding, with the mutations that can be made of it. Without a mask that
 * is, for an embedding, any; for a prompt, what the server's operators could make of it.
 */
export type State = ({ readonly prompt: string } | { readonly embedding: readonly number[] }) & {
  readonly action_mask?: readonly boolean[];
};

type Post<Path extends keyof paths> = Operation<paths, Path, "post">;
export type SelectedAction = AnswerOf<Post<"/select_action">>;
export type Distribution = AnswerOf<Post<"/get_distribution">>;
export type Experience = BodyOf<Post<"/store_experience">>;
/** Which mutations apply, in their order; `keep`, the first, always does. */
export type Mask = NonNullable<Experience["action_mask"]>;
export type StoredExperience = AnswerOf<Post<"/store_experience">>;
export type Update = AnswerOf<Post<"/update">>;
export type Saved = AnswerOf<Post<"/save">>;
export type Loaded = AnswerOf<Post<"/load">>;
export type Stats = AnswerOf<Operation<paths, "/stats", "get">>;

/** A mask as the service takes it. RangeError if it is none. */
export function maskOf(allowed: readonly boolean[]): Mask {
  if (allowed.length !== MUTATIONS.length || allowed[0] !== true) {
    throw new RangeError(`action_mask: give ${MUTATIONS.length} booleans, the first of them true.`);
  }
  return [...allowed] as Mask;
}
