import { expect, it } from "vitest";
import type { MediaItem } from "@/api/runs";
import { moveItem, newBlock, runsBefore, runsOf } from "./blocks";
import { mediaRows } from "./media_grid";
import { linePath } from "./run_pictures";

it("moves a block over others", () => {
  expect(moveItem(["a", "b", "c"], 0, 2)).toEqual(["b", "c", "a"]);
  expect(moveItem(["a", "b", "c"], 2, 0)).toEqual(["c", "a", "b"]);
});

it("begins a block with the runs of the one before", () => {
  const blocks = [newBlock("text"), newBlock("curves", ["a", "b"]), newBlock("table", ["c"])];
  expect([runsBefore(blocks, 2), runsBefore(blocks, 3), runsBefore(blocks, 0)]).toEqual([
    ["a", "b"],
    ["c"],
    ["a", "b"],
  ]);
  expect(runsOf([...blocks, newBlock("media", ["a"])])).toEqual(["a", "b", "c"]);
});

it("puts media of the same name and step side by side", () => {
  const items = (steps: number[]) => steps.map((step) => ({ name: "x", step })) as MediaItem[];
  const media = [items([1, 2]), items([1])];
  expect(mediaRows(media, ["x", "y"], []).map((row) => row.cells.map((cell) => cell[0]?.step))).toEqual([
    [2, 1],
  ]);
  expect(mediaRows(media, ["x"], [1, 2, 3]).map((row) => row.cells.map((cell) => cell.length))).toEqual([
    [1, 1],
    [1, 0],
  ]);
});

it("leaves a gap where a run has no value", () => {
  expect(linePath([[0, 1], null, [2, 3], [4, 5]])).toBe("M0.0 1.0M2.0 3.0L4.0 5.0");
});
