import { expect, it } from "vitest";
import { compilePattern, move, orderPanels, readView, writeView } from "./compare_view";

it("comes back from its address", () => {
  const address =
    "run=a&run=b&tab=table&x=metrics.epoch&smooth=0.6&logx=1&logy=1&group=params.lr&spread=deviation" +
    "&search=loss&pin=val_acc&panel=loss+vs+val_acc&hide=b&differences=1&rows=lr&sx=params.lr&sy=loss";
  expect(writeView(readView(new URLSearchParams(address))).toString()).toBe(address);
});

it("is short by default and ignores what it does not know", () => {
  const view = readView(new URLSearchParams("run=a&run=a&tab=other&x=moon&smooth=7&panel=loss"));
  expect(view).toMatchObject({ tab: "curves", x: "step", smoothing: 0, pairs: [] });
  expect(writeView(view).toString()).toBe("run=a");
});

it("orders panels by pins, then by how many runs have the metric", () => {
  const counts = new Map([
    ["b", 1],
    ["a", 1],
    ["loss", 3],
    ["acc", 2],
  ]);
  expect(orderPanels(counts, ["b", "gone"], () => true)).toEqual(["b", "loss", "acc", "a"]);
  expect(orderPanels(counts, [], compilePattern("^A") ?? (() => false))).toEqual(["acc", "a"]);
  expect(compilePattern("(")).toBeNull();
});

it("moves a panel by one place, and not over the ends", () => {
  expect(move(["a", "b", "c"], "c", -1)).toEqual(["a", "c", "b"]);
  expect(move(["a", "b"], "b", 1)).toEqual(["a", "b"]);
});
