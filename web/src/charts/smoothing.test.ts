import { expect, it } from "vitest";
import { smooth, smoothAll } from "./smoothing";

it("begins at the first value and follows the later ones", () => {
  const smoothed = smooth(Float64Array.of(1, 1, 2), 0.5);
  // by hand: (0.125 * 1 + 0.25 * 1 + 0.5 * 2) / 0.875
  expect([...smoothed]).toEqual([1, 1, 1.375 / 0.875]);
});

it("keeps gaps and infinities, which do not disturb what follows", () => {
  const smoothed = smooth(Float64Array.of(2, Number.NaN, Number.POSITIVE_INFINITY, 2), 0.9);
  expect([...smoothed]).toEqual([2, Number.NaN, Number.POSITIVE_INFINITY, 2]);
});

it("leaves curves as they are without weight", () => {
  const series = [{ key: "a", label: "a", colour: 0, x: Float64Array.of(0), y: Float64Array.of(1) }];
  expect(smoothAll(series, 0)).toBe(series);
});

it("smooths the same values once for a weight", () => {
  const series = [{ key: "a", label: "a", colour: 0, x: Float64Array.of(0, 1), y: Float64Array.of(1, 3) }];
  const [first] = smoothAll(series, 0.5);
  const [again] = smoothAll([...series], 0.5);
  const [other] = smoothAll(series, 0.9);
  expect(again?.y).toBe(first?.y);
  expect(other?.y).toEqual(smooth(Float64Array.of(1, 3), 0.9));
});
