import { expect, test } from "vitest";
import { changeOf, isOtherText, requestOf } from "./run_text";

const read = { label: "first", note: "old", tags: { a: "1", b: "2" } };

test("a change has only what was typed, and names what it replaces", () => {
  const change = changeOf(read, { label: "first", note: "new", tags: { a: "3", c: "" } });
  expect(change).toEqual({ note: "new", tags: { a: "3", b: null, c: "" } });
  expect(requestOf(change, read)).toEqual({
    note: "new",
    tags: { a: "3", c: "" },
    untag: ["b"],
    replaces: { note: "old", tags: { a: "1", b: "2", c: null } },
  });
});

test("a change kept over another one removes no tag of the other user", () => {
  const change = changeOf(read, { label: "first", note: "mine", tags: { a: "1" } });
  const stored = { label: "other", note: "theirs", tags: { a: "9", d: "4" } };
  expect(isOtherText(change, read, stored)).toBe(true);
  expect(requestOf(change, stored)).toEqual({
    note: "mine",
    tags: {},
    untag: [],
    replaces: { note: "theirs", tags: { b: null } },
  });
});

test("a change of another part is no conflict", () => {
  const change = changeOf(read, { ...read, note: "mine" });
  expect(isOtherText(change, read, { label: "other", note: "old", tags: { e: "5" } })).toBe(false);
});
