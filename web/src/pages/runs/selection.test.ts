import { expect, test } from "vitest";
import { extend, keep, NOTHING, toggle } from "./selection";

const ORDER = ["a", "b", "c", "d", "e"];
const ids = (selection: typeof NOTHING) => [...selection.ids].sort().join("");

test("a run is selected and no longer selected", () => {
  const selected = toggle(NOTHING, "b");
  expect(ids(selected)).toBe("b");
  expect(ids(toggle(selected, "b"))).toBe("");
});

test("a range goes from the anchor in both directions, and keeps what was selected", () => {
  const anchored = toggle(toggle(NOTHING, "e"), "c");
  expect(ids(extend(anchored, ORDER, "a"))).toBe("abce");
  expect(ids(extend(extend(anchored, ORDER, "a"), ORDER, "d"))).toBe("abcde");
});

test("a range without an anchor is one run", () => {
  expect(ids(extend(NOTHING, ORDER, "d"))).toBe("d");
  expect(ids(extend({ ids: new Set(["x"]), anchor: "x" }, ORDER, "d"))).toBe("dx");
});

test("runs that are gone are no longer selected", () => {
  expect(ids(keep(toggle(toggle(NOTHING, "a"), "x"), ORDER))).toBe("a");
});
