/** A way to the console that can be cut off, as a network does it. */
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class Line {
  readonly #target: URL;
  readonly #sockets = new Set<Socket>();
  #server: Server | null = null;
  #port = 0;

  constructor(target: string) {
    this.#target = new URL(target);
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  async open(): Promise<this> {
    const server = createServer((visitor) => {
      const onward = connect(Number(this.#target.port), this.#target.hostname);
      for (const [one, other] of [
        [visitor, onward],
        [onward, visitor],
      ] as const) {
        this.#sockets.add(one);
        one.on("error", () => other.destroy());
        one.on("close", () => this.#sockets.delete(one));
        one.pipe(other);
      }
    });
    await new Promise<void>((listening) => server.listen(this.#port, "127.0.0.1", listening));
    this.#port = (server.address() as AddressInfo).port;
    this.#server = server;
    return this;
  }

  /** Every connection breaks, and new ones are refused. */
  async cut(): Promise<void> {
    const server = this.#server;
    this.#server = null;
    if (server === null) return;
    const closed = new Promise((told) => server.close(told));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}
