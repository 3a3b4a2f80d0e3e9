import { randomUUID } from "node:crypto";
import { readdir, rename, unlink } from "node:fs/promises";
import { connect, createServer, type Server } from "node:net";
import { join } from "node:path";

import { isMissing } from "./segments.js";

const SUFFIX = ".alive";
const LONGEST_PATH = 100; // of a socket's name, on Linux 107 bytes and on macOS 103

/**
 * Whether the process that owns a segment still lives, told by the kernel.
 *
 * Node has no file locks. An owner listens on a socket in the spool's folder instead: the kernel closes it when the
 * process dies, however it dies, and a connection is then refused. Names are never used twice, so who is dead once is
 * dead for good.
 */
export class Owner {
  readonly name = randomUUID().replaceAll("-", "").slice(0, 16);
  readonly #server: Server = createServer((visitor) => visitor.destroy());

  private constructor(readonly folder: string) {}

  static async in(folder: string): Promise<Owner> {
    const owner = new Owner(folder);
    const path = owner.#path(owner.name);
    if (Buffer.byteLength(path) > LONGEST_PATH) {
      throw new RangeError(`spool: ${folder} is too long a path for a socket; choose one of at most 75 bytes.`);
    }
    const unnamed = `${path.slice(0, -SUFFIX.length)}.new`;
    await new Promise<void>((listening, failed) => {
      owner.#server.once("error", failed);
      owner.#server.listen(unnamed, listening);
    });
    owner.#server.unref(); // a recorder that was not closed does not keep its process alive
    await rename(unnamed, path); // named only once it answers: nobody takes a beginner for a dead one
    return owner;
  }

  /** Whether nobody answers under `name` any more. */
  async isDead(name: string): Promise<boolean> {
    return await new Promise((told) => {
      const visit = connect(this.#path(name));
      visit.once("connect", () => {
        visit.destroy();
        told(false);
      });
      visit.once("error", (error) => {
        const code = "code" in error ? error.code : undefined;
        told(code === "ECONNREFUSED" || code === "ENOENT");
      });
    });
  }

  /** Remove the sockets of owners that died; their segments stay. */
  async sweep(): Promise<void> {
    for (const name of await readdir(this.folder)) {
      if (!name.endsWith(SUFFIX)) continue;
      const owner = name.slice(0, -SUFFIX.length);
      if (owner !== this.name && (await this.isDead(owner))) await unlinkIfThere(this.#path(owner));
    }
  }

  async close(): Promise<void> {
    await unlinkIfThere(this.#path(this.name));
    await new Promise<void>((closed) => this.#server.close(() => closed()));
  }

  #path(name: string): string {
    return join(this.folder, name + SUFFIX);
  }
}

async function unlinkIfThere(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}
