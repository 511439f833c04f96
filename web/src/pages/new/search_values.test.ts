import { describe, expect, it } from "vitest";
import { EMPTY_FORM, valuesOf } from "./run_values";
import {
  choiceValues,
  NEW_RANGE,
  NEW_SEARCH,
  rangeProblem,
  rungsText,
  searchOf,
  searchValues,
  studyValues,
  type SearchForm,
} from "./search_values";

const SEARCH: SearchForm = {
  ...NEW_SEARCH,
  metric: "val_acc",
  goal: "max",
  searcher: "asha",
  eta: "4",
  trials: "60",
  budget: "27",
  space: [
    { ...NEW_RANGE, name: "lr", low: "1e-5", high: "0.1", isLog: true },
    { ...NEW_RANGE, name: "layers", kind: "whole", low: "1", high: "8" },
    { ...NEW_RANGE, name: "optimizer", kind: "choice", text: 'adam, sgd, "a, b", 7, "7", true, null' },
    { ...NEW_RANGE, name: "drop", kind: "expression", text: "uniform(0, 0.5)" },
    NEW_RANGE,
  ],
};

describe("the search of the form", () => {
  it("is written as a search file", () => {
    expect(searchValues(SEARCH)).toEqual({
      metric: "val_acc",
      goal: "max",
      searcher: { name: "asha", eta: 4 },
      trials: 60,
      epochs: 27,
      space: {
        lr: { type: "float", low: 1e-5, high: 0.1, log: true },
        layers: { type: "int", low: 1, high: 8 },
        optimizer: ["adam", "sgd", "a, b", 7, "7", true, null],
        drop: "uniform(0, 0.5)",
      },
    });
  });

  it("is read from its file again, beside the keys of the run", () => {
    const file = { ...valuesOf({ ...EMPTY_FORM, command: "train.py" }, {}), ...searchValues(SEARCH) };
    const found = searchOf({ ...file, max_failures: 3 });
    expect(found && searchValues(found.search)).toEqual(searchValues(SEARCH));
    expect(found?.rest).toEqual({ max_failures: 3, roles: [{ command: "train.py" }] });
  });

  it("keeps options that it does not show, and refuses ranges that it cannot", () => {
    const values = { metric: "m", searcher: { name: "tpe", startup: 5 }, steps: 100, space: { a: [1] } };
    expect(searchValues(searchOf(values)?.search ?? NEW_SEARCH)).toEqual(values);
    expect(searchOf({ space: { a: { choice: { b: null } } } })).toBeNull();
    expect(searchOf({ space: { a: { type: "float", low: 0, high: 1, step: 0.1 } } })).toBeNull();
  });
});

it.each([
  [{ name: "lr", low: "1e-4", high: "0.1", isLog: true }, ""],
  [{ name: "", low: "1" }, "give the parameter a name"],
  [{ name: "lr", low: "x", high: "1" }, "both ends are numbers: 0.001 or 1e-3"],
  [{ name: "lr", low: "2", high: "1" }, "the lower end comes first"],
  [{ name: "lr", low: "0", high: "1", isLog: true }, "a logarithmic range begins above 0"],
  [{ name: "n", kind: "whole" as const, low: "1.5", high: "3" }, "both ends are whole numbers"],
  [{ name: "n", kind: "choice" as const }, "give its values"],
  [{}, ""],
])("of a range %o the problem is %s", (part, problem) =>
  expect(rangeProblem({ ...NEW_RANGE, ...part })).toBe(problem),
);

it("rungs are those of the searcher", () => {
  expect(rungsText(SEARCH)).toBe("compares trials at 1, 4, 16, 27 epochs; about one in 4 continues");
  expect(rungsText({ ...SEARCH, searcher: "random" })).toBe("");
  expect(rungsText({ ...SEARCH, budget: "" })).toBe("");
});

it("a choice without commas is one value", () => expect(choiceValues(" 16 ")).toEqual([16]));

it("a range replaces the value of its parameter", () => {
  const values = studyValues(
    { params: { lr: 0.1, width: 8 } },
    { ...NEW_SEARCH, space: [{ ...NEW_RANGE, name: " lr " }] },
  );
  expect(values["params"]).toEqual({ width: 8 });
  expect(Object.keys(values["space"] as object)).toEqual(["lr"]);
});
