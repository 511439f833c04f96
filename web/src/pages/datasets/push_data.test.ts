import { describe, expect, it } from "vitest";
import type { Dataset } from "@/api/datasets";
import { nameProblem, originProblem, suggestedName } from "./push_data";

describe("the name of a dataset", () => {
  it.each(["mnist", "MNIST-784_v2.1", "7"])("%s is allowed", (name) => expect(nameProblem(name)).toBe(""));
  it.each(["a/b", "..", "-x", "a b", "a..b", "ü"])("%s is refused", (name) =>
    expect(nameProblem(name)).toContain("not a name"),
  );
  it.each([
    ["My Data (final)", "my-data-final"],
    ["digits.tar.gz", "digits"],
    ["../x", "x"],
    ["数据", ""],
  ])("of %s is suggested as %s", (chosen, name) => {
    expect(suggestedName(chosen)).toBe(name);
    expect(nameProblem(suggestedName(chosen))).toBe("");
  });
});

it("an origin is a version that exists", () => {
  const datasets = [{ name: "raw", newest: { number: 3 } }] as unknown as Dataset[];
  expect(["", "raw", "raw:3"].map((each) => originProblem(each, datasets))).toEqual(["", "", ""]);
  expect(originProblem("raw:4", datasets)).toBe("the newest version of raw is 3");
  expect(originProblem("other:1", datasets)).toBe("there is no dataset other");
  expect(originProblem("raw:x", datasets)).toContain("NAME:VERSION");
});
