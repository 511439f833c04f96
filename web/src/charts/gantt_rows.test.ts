import { expect, test } from "vitest";
import {
  barAt,
  busyShare,
  firstBar,
  type GanttBar,
  moveSpan,
  packLanes,
  spanOf,
  zoomSpan,
} from "./gantt_rows";

const bar = (from: number, to: number, key = "0"): GanttBar => ({
  key,
  from,
  to,
  colour: 0,
  label: key,
  title: key,
});
const WHOLE = [0, 100] as const;

test("a zoom keeps its place and stays within the whole", () => {
  expect(zoomSpan(WHOLE, WHOLE, 0.5, 0.5)).toEqual([25, 75]);
  expect(zoomSpan([0, 10], WHOLE, 2, 0)).toEqual([0, 20]);
  expect(zoomSpan([90, 100], WHOLE, 4, 0.5)).toEqual([60, 100]);
  expect(zoomSpan([0, 50], WHOLE, 2, 0.5)).toBeNull();
  expect(moveSpan([10, 20], WHOLE, -2)).toEqual([0, 10]);
  expect(moveSpan([80, 90], WHOLE, 5)).toEqual([90, 100]);
});

test("bars of a range and at a time are found", () => {
  const bars = [bar(0, 5, "a"), bar(5, 6, "b"), bar(10, 12, "c")];
  expect(firstBar(bars, 9, 5)).toBe(1);
  expect(barAt(bars, 5.5, 0)?.key).toBe("b");
  expect(barAt(bars, 8, 0)).toBeNull();
  expect(spanOf([{ label: "", bars }])).toEqual([0, 12]);
  expect(spanOf([])).toBeNull();
  expect(busyShare({ label: "", bars: [bar(0, 5), bar(4, 6)] }, [0, 12])).toBe(0.5);
});

test("runs that overlap get lanes, as few as there are at a time", () => {
  const lanes = packLanes("box", [bar(4, 8, "c"), bar(0, 4, "a"), bar(1, 3, "b")]);
  expect(lanes.map((lane) => [lane.label, lane.bars.map((each) => each.key)])).toEqual([
    ["box", ["a", "c"]],
    ["", ["b"]],
  ]);
});
