/** The theme that the page shows now, for what is painted and not styled. */
import { signal } from "@preact/signals";
import type { ShownTheme } from "./palette";

const read = (): ShownTheme => (document.documentElement.dataset["theme"] === "dark" ? "dark" : "light");

export const shownTheme = signal<ShownTheme>(read());

new MutationObserver(() => {
  shownTheme.value = read();
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });
