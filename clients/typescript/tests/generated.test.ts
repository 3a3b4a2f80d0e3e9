/** The types in the package are those of the server beside it. */
import { expect, test } from "vitest";

import { CLIENT, output } from "./python.js";

test("the types are up to date: otherwise, npm run generate", async () => {
  const said = await output("npm", ["run", "-s", "generate", "--", "--check"], CLIENT);
  expect(said).toContain("console.ts is up to date");
});
