import { describe, expect, it } from "vitest";
import {
  byValue,
  type CurveSeries,
  nearestIndex,
  MANY_CURVES,
  nearPoints,
  placeValues,
  unionOfX,
  valueRows,
  valuesAt,
  widen,
  withoutManyBands,
  xBounds,
  yBounds,
} from "./curve_series";

const curve = (key: string, x: number[], y: number[]): CurveSeries => ({
  key,
  label: key,
  colour: 0,
  x: Float64Array.from(x),
  y: Float64Array.from(y),
});

describe("ranges", () => {
  const series = [
    curve("a", [0, 5, 10], [1, Number.NaN, 100]),
    curve("b", [2, 3], [-4, Number.POSITIVE_INFINITY]),
  ];

  it("cover all points of all curves", () => {
    expect(xBounds(series, false)).toEqual([0, 10]);
    expect(yBounds(series, [0, 10], false)).toEqual([-4, 100]);
  });

  it("leave out what a logarithm does not have", () => {
    expect(xBounds(series, true)).toEqual([2, 10]);
    expect(yBounds(series, [0, 10], true)).toEqual([1, 100]);
  });

  it("include the points beside the shown range, to which lines lead", () => {
    expect(yBounds([curve("a", [0, 1, 2, 3, 4], [9, 1, 2, 3, 9])], [1.5, 2.5], false)).toEqual([1, 3]);
  });

  it("are null without points and never empty with one", () => {
    expect(xBounds([curve("a", [], [])], false)).toBeNull();
    expect(yBounds([curve("a", [1], [Number.NaN])], [0, 2], false)).toBeNull();
    expect(xBounds([curve("a", [0], [1])], false)).toEqual([-1, 1]);
    expect(widen([8, 8], true)).toEqual([4, 16]);
  });
});

describe("points near the cursor", () => {
  it("are the nearest of each curve, also at its ends", () => {
    const x = Float64Array.of(0, 10, 20);
    expect([-5, 4, 5, 6, 99].map((value) => nearestIndex(x, value))).toEqual([0, 0, 0, 1, 2]);
    expect(nearestIndex(Float64Array.of(), 1)).toBe(-1);
  });

  it("leave out curves that are elsewhere", () => {
    const series = [curve("a", [0, 10], [1, 2]), curve("b", [50, 60], [3, 4]), curve("c", [], [])];
    expect(nearPoints(series, 12, 3).map((point) => [point.series.key, point.x])).toEqual([["a", 10]]);
  });

  it("are sorted by value, those without one last", () => {
    const series = [
      curve("low", [0], [1]),
      curve("none", [0], [Number.NaN]),
      curve("infinite", [0], [Number.POSITIVE_INFINITY]),
      curve("high", [0], [3]),
    ];
    const sorted = nearPoints(series, 0, 1).sort(byValue);
    expect(sorted.map((point) => point.series.key)).toEqual(["infinite", "high", "low", "none"]);
  });
});

describe("curves on one x axis", () => {
  it("share the distinct x of all", () => {
    expect([...unionOfX([curve("a", [0, 2], [0, 0]), curve("b", [1, 2, Number.NaN], [0, 0, 0])])]).toEqual([
      0, 1, 2,
    ]);
  });

  it("have values between their points, and none outside", () => {
    const values = valuesAt(curve("a", [1, 3, 5], [10, 30, Number.NaN]), Float64Array.of(0, 1, 2, 4, 9));
    expect([...values]).toEqual([Number.NaN, 10, 20, Number.NaN, Number.NaN]);
  });

  it("become a table that is not too long and keeps both ends", () => {
    const x = Array.from({ length: 1000 }, (_, i) => i);
    const rows = valueRows([curve("a", x, x), curve("b", [0], [7])], 50);
    expect(rows).toHaveLength(50);
    expect([rows[0], rows.at(-1)]).toEqual([
      { x: 0, values: [0, 7] },
      { x: 999, values: [999, null] },
    ]);
  });
});

it("draws values between the ends of an axis", () => {
  expect([0, 5, 10].map(placeValues([0, 10], false, 100, 50))).toEqual([100, 125, 150]);
  expect([1, 10, 100].map(placeValues([1, 100], true, 80, -80))).toEqual([80, 40, 0]);
});

it("leaves out the bands of many curves only", () => {
  const band = { low: Float64Array.of(0), high: Float64Array.of(2) };
  const few = Array.from({ length: MANY_CURVES }, (_, i) => ({ ...curve(String(i), [0], [1]), band }));
  expect(withoutManyBands(few)).toBe(few);
  const many = withoutManyBands([...few, { ...curve("last", [0], [1]), band }]);
  expect(many.length).toBe(MANY_CURVES + 1);
  expect(many.some((each) => each.band)).toBe(false);
});
