/** Light or dark: as the system, or as chosen here. */
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "hopyard.theme";

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>(stored());

/** Applies the theme to the page, now and after each change of it or of the system. */
export function followTheme(): void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const shown = theme.value === "system" ? (dark.matches ? "dark" : "light") : theme.value;
    document.documentElement.dataset["theme"] = shown;
  };
  dark.addEventListener("change", apply);
  effect(() => {
    localStorage.setItem(KEY, theme.value);
    apply();
  });
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

/** Chooses the next theme: light, dark, as the system. */
export function nextTheme(): void {
  theme.value = NEXT[theme.value];
}
