import { expect, it } from "vitest";
import { formatTick, formatX } from "./axis_format";

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
