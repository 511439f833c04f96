import { describe, expect, it } from "vitest";
import { differingParams } from "./params";

describe("differingParams", () => {
  it("names params that differ or that only some rows have", () => {
    expect(
      differingParams([
        { lr: 0.1, epochs: 5, seed: 1 },
        { lr: 0.2, epochs: 5 },
      ]),
    ).toEqual(["lr", "seed"]);
    expect(differingParams([{ lr: 0.1 }])).toEqual([]);
    expect(differingParams([])).toEqual([]);
  });
});
