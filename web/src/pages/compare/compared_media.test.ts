import { expect, test } from "vitest";
import type { MediaItem } from "@/api/runs";
import { mediaRows, mediaSteps } from "./compared_media";

const item = (name: string, step: number, index: number, digest: string): MediaItem =>
  ({ name, step, index, digest, rank: 0, id: `${name}-${step}-${index}` }) as MediaItem;
const LISTS = [
  [item("sample", 0, 0, "a"), item("sample", 0, 1, "b"), item("sample", 4, 0, "c"), item("note", 0, 0, "n")],
  [item("sample", 0, 0, "a"), item("sample", 2, 0, "d"), item("note", 0, 0, "n")],
];
const at = (step: number) =>
  mediaRows(LISTS, step).map((row) => [row.name, row.index, ...row.items.map((each) => each?.id ?? null)]);

test("the same sample of each run stands in a row, the newest where a run has none at the step", () => {
  expect(mediaSteps(LISTS)).toEqual([0, 2, 4]);
  expect(at(0)).toEqual([
    ["note", 0, "note-0-0", "note-0-0"],
    ["sample", 0, "sample-0-0", "sample-0-0"],
    ["sample", 1, "sample-0-1", null],
  ]);
  expect(at(4)).toEqual([
    ["note", 0, "note-0-0", "note-0-0"],
    ["sample", 0, "sample-4-0", "sample-2-0"],
  ]);
  expect(at(-1)).toEqual([]);
});

test("rows with the same content in all runs do not differ", () => {
  expect(mediaRows(LISTS, 0).map((row) => row.isDifferent)).toEqual([false, false, true]);
  expect(mediaRows(LISTS, 2).map((row) => row.isDifferent)).toEqual([false, true, true]);
});

test("samples that were logged one after the other at a step are rows of their own", () => {
  const list = [item("sample", 0, 0, "a"), item("sample", 0, 0, "b")];
  expect(
    mediaRows([list, list], 0).map((row) => [row.index, ...row.items.map((each) => each?.digest)]),
  ).toEqual([
    [0, "a", "a"],
    [1, "b", "b"],
  ]);
});
