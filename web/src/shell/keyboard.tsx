/** The keys that work on every page, and the dialog that lists all keys. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { Dialog } from "@/parts/dialog";
import styles from "./keyboard.module.css";
import { followKeys, shortcuts, useShortcuts } from "./keys";
import { PAGES } from "./pages";
import { nextTheme } from "./theme";

export const isPaletteOpen = signal(false);
const isHelpOpen = signal(false);

const KEY_TEXTS: Record<string, string> = {
  ArrowDown: "↓",
  ArrowUp: "↑",
  " ": "Space",
  Escape: "Esc",
};

function Keys({ keys }: { keys: string }) {
  return (
    <>
      {keys.split(/(?<=.) (?=.)/).map((key) => (
        <kbd key={key} class={styles["key"]}>
          {key.replace(
            /[^+]+$/,
            (last) => KEY_TEXTS[last] ?? (key.includes("+") ? last.toUpperCase() : last),
          )}
        </kbd>
      ))}
    </>
  );
}

/** Registers the keys of every page. Shows the list of keys on `?`. */
export function Keyboard() {
  const [, navigate] = useLocation();
  useEffect(followKeys, []);
  useShortcuts([
    {
      keys: "Ctrl+k",
      text: "Search pages, runs and actions",
      section: "Everywhere",
      run: () => (isPaletteOpen.value = true),
    },
    { keys: "?", text: "Show the keys", section: "Everywhere", run: () => (isHelpOpen.value = true) },
    { keys: "t", text: "Change the theme", section: "Everywhere", run: nextTheme },
    ...PAGES.map((page) => ({
      keys: `g ${page.key}`,
      text: `Go to ${page.title}`,
      section: "Pages",
      run: () => navigate(page.path),
    })),
  ]);
  const sections = [...new Set(shortcuts.value.map((shortcut) => shortcut.section))];
  return (
    <Dialog title="Keys" isOpen={isHelpOpen.value} onClose={() => (isHelpOpen.value = false)} isWide>
      <div class={styles["sections"]} tabIndex={0} role="group" aria-label="keys by page">
        {sections.map((section) => (
          <section key={section}>
            <h3>{section}</h3>
            <dl>
              {shortcuts.value
                .filter((shortcut) => shortcut.section === section && !shortcut.isRepeat)
                .map((shortcut) => (
                  <div key={shortcut.keys}>
                    <dt>{shortcut.text}</dt>
                    <dd>
                      <Keys keys={shortcut.keys} />
                    </dd>
                  </div>
                ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
