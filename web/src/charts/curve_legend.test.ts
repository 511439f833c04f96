import { expect, it } from "vitest";
import { toggleHidden } from "./curve_legend";

const KEYS = ["a", "b", "c"];

it("hides and shows one curve", () => {
  const hidden = toggleHidden(new Set(), KEYS, "b", false);
  expect([...hidden]).toEqual(["b"]);
  expect([...toggleHidden(hidden, KEYS, "b", false)]).toEqual([]);
});

it("shows one curve alone, and all again", () => {
  const hidden = toggleHidden(new Set(["b"]), KEYS, "b", true);
  expect([...hidden]).toEqual(["a", "c"]);
  expect([...toggleHidden(hidden, KEYS, "b", true)]).toEqual([]);
});
