import { expect, test } from "vitest";
import { hasRungs, listBrackets } from "./rungs";
import { mergeTrials, ranked, type Study, type Trial } from "./study_data";

const study = { goal: "max", searcher: "asha", max_budget: 9, unit: "epoch", metric: "acc" } as Study;

function trial(name: string, part: Partial<Trial>): Trial {
  return {
    trial: name,
    state: "completed",
    params: {},
    budget: 9,
    best: null,
    value: null,
    rungs: [],
    ...part,
  } as Trial;
}

const promoted = trial("0", {
  best: 0.9,
  rungs: [
    { budget: 1, value: 0.5, outcome: "promoted" },
    { budget: 9, value: 0.9, outcome: "completed" },
  ],
});
const stopped = trial("1", {
  budget: 1,
  state: "stopped",
  best: 0.4,
  rungs: [{ budget: 1, value: 0.4, outcome: "stopped" }],
});
const failed = trial("2", { budget: 1, state: "failed" });
const training = trial("3", {
  state: "training",
  best: 0.6,
  rungs: [{ budget: 1, value: 0.6, outcome: "promoted" }],
});
const trials = [stopped, failed, promoted, training];

test("a rung shows the promoted trials, best first, and the worst promoted value", () => {
  const [bracket] = listBrackets(study, trials);
  const shown = bracket?.rungs.map((rung) => [
    rung.budget,
    rung.bound,
    rung.entries.map((entry) => `${entry.trial.trial} ${entry.outcome}`),
  ]);
  expect(shown).toEqual([
    [1, 0.5, ["3 promoted", "0 promoted", "1 stopped", "2 failed"]],
    [9, null, ["0 completed", "3 training"]],
  ]);
});

test("a trial that ends at the largest budget has completed it", () => {
  const last = trial("4", {
    state: "stopped",
    rungs: [
      { budget: 1, value: 0.5, outcome: "promoted" },
      { budget: 9, value: 0.7, outcome: "stopped" },
    ],
  });
  const [bracket] = listBrackets(study, [last]);
  expect(bracket?.rungs.map((rung) => rung.entries[0]?.outcome)).toEqual(["promoted", "completed"]);
});

test("trials that begin at a larger budget are a bracket of their own", () => {
  const late = trial("4", { rungs: [{ budget: 9, value: 0.7, outcome: "completed" }] });
  expect(listBrackets(study, [late, ...trials]).map((bracket) => bracket.trials)).toEqual([4, 1]);
});

test("a study of one budget has no rungs", () => {
  const plain = trial("0", { rungs: [{ budget: 9, value: 0.7, outcome: "completed" }] });
  expect(hasRungs({ ...study, searcher: "random" }, [plain])).toBe(false);
  expect(hasRungs(study, trials)).toBe(true);
});

test("changed trials keep their places, and the best come first in the table", () => {
  const changed = { ...stopped, best: 0.95 };
  const merged = mergeTrials(trials, [changed, trial("5", {})]);
  expect(merged.map((each) => each.trial)).toEqual(["1", "2", "0", "3", "5"]);
  expect(ranked(study, merged).map((each) => each.trial)).toEqual(["1", "0", "3", "2", "5"]);
  expect(ranked({ ...study, goal: "min" }, merged)[0]?.trial).toBe("3");
});
