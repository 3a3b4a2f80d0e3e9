/** The types in the package are those of the server beside it. */
import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { generated, isThere, SOURCES } from "../generate.js";

for (const [name, source] of Object.entries(SOURCES)) {
  test.skipIf(!isThere(source))(`the types of ${name} are up to date: otherwise, npm run generate`, async () => {
    expect(readFileSync(source.file, "utf8")).toBe(await generated(source));
  });
}
