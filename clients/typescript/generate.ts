/**
 * Writes src/generated/ from the OpenAPI documents of the Python servers in this repository: `npm run generate`. With
 * `--check` nothing is written, and the exit code says whether it would be.
 */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import openapiTS, { astToString } from "openapi-typescript";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const HEAD = "// Made by `npm run generate` from the server's OpenAPI document: do not edit.\n\n";

interface Source {
  file: string;
  /** The part of the server without which there is no such document. */
  needs: string;
  /** Python that leaves the document in `made`. */
  program: string;
}

const SOURCES: readonly Source[] = [
  {
    file: fileURLToPath(new URL("src/generated/console.ts", import.meta.url)),
    needs: "trainer/console/app.py",
    program:
      "from trainer.console.app import OPERATIONS as o\nfrom trainer.console.openapi import document\nmade = document(o)",
  },
  {
    file: fileURLToPath(new URL("src/generated/prompts.ts", import.meta.url)),
    needs: "scripts/prompts.py",
    program:
      "from trainer.console.policy_api import ALONE as o\nfrom trainer.console.openapi import document\nmade = document(o, under='')",
  },
];

/** The types of a server's document, as they should be in its file. */
async function generated(source: Source): Promise<string> {
  const program = `${source.program}\nimport json\nprint(json.dumps(made))`;
  const document = execFileSync(`${ROOT}.venv/bin/python`, ["-c", program], {
    cwd: ROOT,
    encoding: "utf8",
    maxBuffer: 2 ** 26,
  });
  return HEAD + astToString(await openapiTS(document, { defaultNonNullable: false, alphabetize: true }));
}

const isCheck = process.argv.includes("--check");
for (const source of SOURCES.filter((one) => existsSync(ROOT + one.needs))) {
  const text = await generated(source);
  const isNew = !existsSync(source.file) || readFileSync(source.file, "utf8") !== text;
  if (isNew && isCheck) process.exitCode = 1;
  else if (isNew) writeFileSync(source.file, text);
  console.log(
    `${source.file} ${!isNew ? "is up to date" : isCheck ? "is out of date: npm run generate" : "was written"}`,
  );
}
