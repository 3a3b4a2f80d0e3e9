import type { Connection } from "./connection.js";
import type { paths } from "./generated/console.js";

/** The console's API with one key. */
export type Console = Connection<paths>;

/** What all calls of the console's API begin with. */
export const API = "/api/v1";
