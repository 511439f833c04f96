import { expect, test } from "vitest";
import { findShortcut, keyName, type Shortcut } from "./keys";

const shortcut = (keys: string): Shortcut => ({ keys, text: keys, section: "", run: () => undefined });
const ALL = ["g r", "r", "?", "Ctrl+k", "Shift+ArrowDown"].map(shortcut);
const typed = (before: string, key: string) => findShortcut(ALL, before, key).found?.keys;

test("keys are named as shortcuts write them", () => {
  const event = { key: "k", ctrlKey: false, metaKey: true, altKey: false, shiftKey: false };
  expect(keyName(event)).toBe("Ctrl+k");
  expect(keyName({ ...event, key: "?", metaKey: false, shiftKey: true })).toBe("?");
  expect(keyName({ ...event, key: "ArrowDown", metaKey: false, shiftKey: true })).toBe("Shift+ArrowDown");
});

test("a sequence goes before its last key, and its first key waits", () => {
  expect(findShortcut(ALL, "", "g")).toEqual({ found: undefined, isPrefix: true });
  expect(typed("g", "r")).toBe("g r");
  expect(typed("", "r")).toBe("r");
  expect(typed("g", "?")).toBe("?");
});
