/** Keys of the page: parts register theirs, one listener finds the one that was typed, `?` shows them all. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { focusPage } from "./page_focus";

export interface Shortcut {
  keys: string; // `j`, `Ctrl+k`, `Shift+ArrowDown`, or a sequence: `g r`
  text: string;
  section: string;
  run: () => void;
  isRepeat?: boolean; // not shown: another key for the same
}

const SEQUENCE_MS = 1200;

/** All keys that work at present, in the order in which they were registered. */
export const shortcuts = signal<readonly Shortcut[]>([]);

/** Returns a typed key as shortcuts write it. Shift counts only where the key is no character. */
export function keyName(
  event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">,
): string {
  const shift = event.shiftKey && event.key.length > 1 ? "Shift+" : "";
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${shift}${event.key}`;
}

/** Returns the shortcut that the typed keys end with, and whether a longer one may follow. */
export function findShortcut(
  all: readonly Shortcut[],
  before: string,
  key: string,
): { found: Shortcut | undefined; isPrefix: boolean } {
  const sequence = before === "" ? key : `${before} ${key}`;
  const last = (keys: string) => all.findLast((shortcut) => shortcut.keys === keys);
  return {
    found: last(sequence) ?? (before === "" ? undefined : last(key)),
    isPrefix: all.some((shortcut) => shortcut.keys.startsWith(`${key} `)),
  };
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) &&
    !(target instanceof HTMLInputElement && target.type === "checkbox")
  );
}

/** Whether a dialog, a menu or a list is open in front of the page. */
function isInFront(): boolean {
  return document.querySelector("[role=dialog], [role=menu], [role=listbox]") !== null;
}

/** Follows the keyboard, until the returned function is called. Keys of a field or a dialog are left to it. */
export function followKeys(): () => void {
  let before = "";
  let at = 0;
  const listen = (event: KeyboardEvent) => {
    if (event.defaultPrevented || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) {
      return;
    }
    const key = keyName(event);
    const isPlain = !key.startsWith("Ctrl+");
    if (key === "Escape" && isTyping(event.target) && !isInFront()) {
      const { target } = event;
      // in a search field with a text, the browser clears it at first
      if (!(target instanceof HTMLInputElement && target.type === "search" && target.value !== "")) {
        focusPage(); // where the keys of the page work again
      }
      return;
    }
    if (isPlain && (isTyping(event.target) || isInFront())) {
      return;
    }
    // Enter and the space bar belong to the button or the link that has the focus
    if (
      /^(Enter| )$/.test(event.key) &&
      event.target instanceof Element &&
      event.target.closest("button, a, summary")
    ) {
      return;
    }
    const { found, isPrefix } = findShortcut(
      shortcuts.value,
      Date.now() - at < SEQUENCE_MS ? before : "",
      key,
    );
    before = found ? "" : isPrefix ? key : "";
    at = Date.now();
    if (found) {
      event.preventDefault();
      found.run();
    }
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

/** Registers keys while a component is there. Their functions may differ at each call, their keys not. */
export function useShortcuts(own: readonly Shortcut[]): void {
  const latest = useRef(own);
  latest.current = own;
  useEffect(() => {
    const registered = own.map((shortcut, index) => ({
      ...shortcut,
      run: () => latest.current[index]?.run(),
    }));
    shortcuts.value = [...shortcuts.peek(), ...registered];
    return () => {
      shortcuts.value = shortcuts.peek().filter((shortcut) => !registered.includes(shortcut));
    };
  }, []);
}
