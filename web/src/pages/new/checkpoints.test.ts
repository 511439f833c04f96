import { expect, it } from "vitest";
import { startPoints } from "./checkpoints";
import { startFrom } from "./use_answer";

const saved = (step: number, path = "", more: object = {}) => ({
  step,
  manifest: `m${step}${path}`,
  path,
  rank: 0,
  damaged: false,
  ...more,
});

it("offers readable checkpoints of the first replica, the newest first, and the script's own", () => {
  const points = startPoints([
    saved(1),
    saved(1),
    saved(2, "", { damaged: true }),
    saved(3, "", { rank: 1 }),
    saved(3, "work/model.pt"),
    saved(4),
  ]);
  expect(points.map(({ step, path }) => [step, path])).toEqual([
    [4, ""],
    [3, "work/model.pt"],
    [1, ""],
  ]);
});

it("starts from a state, or from the files that the script saved", () => {
  expect(startFrom("r", saved(4))).toEqual({ resume: { run: "r", step: 4, manifest: "m4" } });
  expect(startFrom("r", saved(3, "work/a"))).toEqual({ initial_folder: "m3work/a" });
});
