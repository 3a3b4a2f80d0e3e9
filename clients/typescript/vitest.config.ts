import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["tests/**/*.test.ts"],
    globalSetup: "tests/server.ts",
    testTimeout: 60_000, // the machine may be busy; nothing waits for a length of time
    hookTimeout: 60_000,
    maxWorkers: 2,
  },
});
