import { randomInt } from "node:crypto";

const EPOCH_MS = 1_704_067_200_000; // 2024-01-01
const SEQUENCES = 1 << 12;

// The game's own workers count up from 0; ours draws its number at random from the upper half.
const worker = BigInt(512 + randomInt(512));
let moment = 0;
let sequence = 0;

/** An id like the game's: 41 bits of time, 10 of the worker, 12 of a sequence, as a decimal number. */
export function snowflakeId(): string {
  moment = Math.max(moment, Date.now() - EPOCH_MS);
  sequence += 1;
  if (sequence === SEQUENCES) {
    sequence = 0;
    moment += 1; // more than 4,096 in a millisecond: use the next one instead of waiting
  }
  return String((BigInt(moment) << 22n) | (worker << 12n) | BigInt(sequence));
}
