import preact from "@preact/preset-vite";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

// `HOPYARD_URL=http://127.0.0.1:8765 npm run dev` serves the sources with the API of a real server
const server = process.env["HOPYARD_URL"] ?? "http://127.0.0.1:8765";

export default defineConfig({
  plugins: [preact({ devToolsEnabled: false })],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    outDir: "../src/hopyard/web_ui",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    assetsInlineLimit: 0, // data: addresses are not allowed for scripts and fonts
    modulePreload: { polyfill: false }, // it would be an inline script
    rolldownOptions: {
      output: {
        codeSplitting: {
          // small modules that several pages share are one file: each file is a request before a page is drawn
          groups: [
            {
              name: "vendor",
              test: /node_modules[\\/](preact|@preact|wouter-preact|regexparam|openapi-fetch)[\\/]/,
            },
            {
              name: "common",
              test: /web[\\/]src[\\/](api|parts|shell|text)[\\/]/,
              minShareCount: 3,
              maxModuleSize: 12_000,
            },
          ],
        },
      },
    },
  },
  server: { proxy: { "/api": { target: server, changeOrigin: false } } },
});
