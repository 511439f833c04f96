import { expect, it } from "vitest";
import { drop, move, orderPanels, pairName, toPairs } from "./panels";

it("orders panels by pins, then by how many runs have the metric", () => {
  const counts = new Map([
    ["b", 1],
    ["a", 1],
    ["loss", 3],
    ["acc", 2],
  ]);
  expect(orderPanels(counts, ["b", "gone"], () => true)).toEqual(["b", "loss", "acc", "a"]);
  expect(orderPanels(counts, [], (name) => name.startsWith("a"))).toEqual(["acc", "a"]);
});

it("moves a panel by one place, and not over the ends", () => {
  expect(move(["a", "b", "c"], "c", -1)).toEqual(["a", "c", "b"]);
  expect(move(["a", "b"], "b", 1)).toEqual(["a", "b"]);
});

it("drops a panel in the place of another, and pins one that was not", () => {
  expect(drop(["a", "b", "c"], "a", "c")).toEqual(["b", "c", "a"]);
  expect(drop(["a", "b", "c"], "c", "a")).toEqual(["c", "a", "b"]);
  expect(drop(["a", "b"], "new", "b")).toEqual(["a", "new", "b"]);
  expect(drop(["a", "b"], "a", "unpinned")).toEqual(["b", "a"]);
});

it("reads pairs by their names", () => {
  const pair = { y: "loss", x: "epoch" };
  expect(toPairs([pairName(pair), pairName(pair), "loss", " vs "])).toEqual([pair]);
});
