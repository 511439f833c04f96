import { expect, it } from "vitest";
import type { CurveSeries } from "./curve_series";
import { groupCurves } from "./grouping";

const curve = (key: string, x: number[], y: number[]): CurveSeries => ({
  key,
  label: key,
  colour: 0,
  x: Float64Array.from(x),
  y: Float64Array.from(y),
});

it("takes the mean at every step of any member", () => {
  const group = groupCurves([curve("a", [0, 2, 4], [0, 2, 4]), curve("b", [0, 1, 2], [10, 10, 12])], "range");
  expect([...group.x]).toEqual([0, 1, 2, 4]);
  expect([...group.y]).toEqual([5, 5.5, 7, 4]); // a is 1 at step 1; b has ended at step 4
  expect([...group.band.low]).toEqual([0, 1, 2, 4]);
  expect([...group.band.high]).toEqual([10, 10, 12, 4]);
});

it("shows the standard deviation of the sample", () => {
  const group = groupCurves([curve("a", [0], [1]), curve("b", [0], [3])], "deviation");
  expect(group.y[0]).toBe(2);
  expect(group.band.high[0]).toBeCloseTo(2 + Math.SQRT2, 12);
});

it("leaves out what is not a number", () => {
  const group = groupCurves([curve("a", [0, 1], [1, Number.NaN]), curve("b", [0, 1], [3, 5])], "range");
  expect([...group.y]).toEqual([2, 5]);
});

it("has a gap where no member is", () => {
  const group = groupCurves([curve("a", [0, 1], [1, 1]), curve("b", [5, 6], [2, 2])], "range");
  expect([...group.x]).toEqual([0, 1, 5, 5, 6]);
  expect([...group.y]).toEqual([1, 1, Number.NaN, 2, 2]);
});
