/** Writes src/generated/ from the OpenAPI documents of the Python servers in this repository: `npm run generate`. */
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

export const SOURCES: Record<"console" | "prompts", Source> = {
  console: {
    file: fileURLToPath(new URL("src/generated/console.ts", import.meta.url)),
    needs: "trainer/console/app.py",
    program: "from trainer.console.app import OPERATIONS as o\nfrom trainer.console.openapi import document\nmade = document(o)",
  },
  prompts: {
    file: fileURLToPath(new URL("src/generated/prompts.ts", import.meta.url)),
    needs: "scripts/prompts.py",
    program:
      "from trainer.console.policy_api import ALONE as o\nfrom trainer.console.openapi import document\nmade = document(o, under='')",
  },
};

/** Whether this repository has the server whose document it is. */
export function isThere(source: Source): boolean {
  return existsSync(ROOT + source.needs);
}

/** The types of a server's document, as they should be in its file. */
export async function generated(source: Source): Promise<string> {
  const program = `${source.program}\nimport json\nprint(json.dumps(made))`;
  const document = execFileSync(`${ROOT}.venv/bin/python`, ["-c", program], { cwd: ROOT, encoding: "utf8", maxBuffer: 2 ** 26 });
  return HEAD + astToString(await openapiTS(document, { defaultNonNullable: false, alphabetize: true }));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const source of Object.values(SOURCES).filter(isThere)) {
    const text = await generated(source);
    const isNew = !existsSync(source.file) || readFileSync(source.file, "utf8") !== text;
    if (isNew) writeFileSync(source.file, text);
    console.log(`${source.file} ${isNew ? "was written" : "is up to date"}`);
  }
}
