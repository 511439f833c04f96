import { mergeConfig } from "vite";
import { defineConfig } from "vitest/config";
import vite from "./vite.config";

export default mergeConfig(
  vite,
  defineConfig({
    test: {
      environment: "happy-dom",
      include: ["src/**/*.test.{ts,tsx}"],
      // libraries for React get Preact here as well
      server: { deps: { inline: [/@base-ui/, /@floating-ui/, /@tanstack/, /cmdk/] } },
    },
  }),
);
