import { describe, expect, it } from "vitest";
import { frameOf, niceTicks, stepPath } from "./record_steps";

describe("the picture of results over time", () => {
  it("has room around the values, also around equal ones", () => {
    expect(frameOf([])).toBeNull();
    expect(frameOf([{ at: 0, value: NaN }])).toBeNull();
    const one = frameOf([{ at: 1000, value: 0.5 }]);
    expect(one && one.low < 0.5 && one.high > 0.5 && one.begin < 1000 && one.end > 1000).toBe(true);
    const two = frameOf([
      { at: 0, value: 1 },
      { at: 100, value: Infinity },
      { at: 200, value: 3 },
    ]);
    expect(two && [two.low < 1, two.high > 3, two.high < 4, two.end > 200]).toEqual([true, true, true, true]);
  });

  it("has round ticks", () => {
    expect(niceTicks(0.81, 0.99, 4)).toEqual([0.85, 0.9, 0.95]);
    expect(niceTicks(-1, 11, 4)).toEqual([0, 5, 10]);
  });

  it("holds a record until the next one", () => {
    expect(
      stepPath(
        [
          { x: 0, y: 9 },
          { x: 5, y: 4 },
        ],
        8,
      ),
    ).toBe("M0,9H5V4H8");
    expect(stepPath([], 8)).toBe("");
  });
});
