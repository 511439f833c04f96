import { expect, it } from "vitest";
import { formatTick, formatX, formatSeconds, logTicks, roundTicks } from "./axis_format";

it("writes ticks shortly and exactly", () => {
  expect([0, 0.1 + 0.2, 900, 1500, 1234, 25000, 2e6, 1.25e9, -40000, 2e-6].map(formatTick)).toEqual([
    "0",
    "0.3",
    "900",
    "1.5k",
    "1234",
    "25k",
    "2M",
    "1.25G",
    "-40k",
    "2e-6",
  ]);
});

it("writes an x by its kind", () => {
  expect(formatX("elapsed", 3725)).toBe("1h 02m");
  expect(formatX("step", 3725)).toBe("3725");
  expect(formatX("time", Number.NaN)).toBe("–");
});

it("writes ticks of seconds apart from each other", () => {
  expect([0, 0.25, 0.3, 59, 90].map(formatSeconds)).toEqual(["0s", "0.25s", "0.3s", "59s", "1m 30s"]);
});

it("divides a range at round numbers", () => {
  expect(roundTicks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(roundTicks(-3, 12, 5)).toEqual([0, 5, 10]);
});

it("divides a logarithmic axis at powers of ten, or at round numbers within one", () => {
  expect(logTicks(0.00947, 312)).toEqual([0.01, 0.1, 1, 10, 100]);
  expect(logTicks(0.3, 40)).toEqual([0.5, 1, 2, 5, 10, 20]);
  expect(logTicks(3.1, 4.9)).toEqual([3.5, 4, 4.5]);
  expect(logTicks(1e-12, 1).length).toBeLessThan(9);
});
