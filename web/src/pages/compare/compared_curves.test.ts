import { expect, it } from "vitest";
import { type RunSeries, seriesKey } from "@/charts/series_data";
import type { Run } from "./columns";
import { comparedCurves, countMetrics } from "./compared_curves";

const RUNS = [
  { id: "a", latest: { loss: [1, 2], acc: [1, 1] } },
  { id: "b", latest: { loss: [1, 2] } },
  { id: "c", latest: {} },
] as unknown as Run[];
const IDS = RUNS.map((run) => run.id);
const series = new Map<string, RunSeries>(
  [
    ["a", 1],
    ["b", 3],
  ].map(([run, value]) => [
    seriesKey(String(run), "loss"),
    {
      run: String(run),
      name: "loss",
      x: Float64Array.of(0),
      y: Float64Array.of(Number(value)),
      total: 1,
      isExact: true,
    },
  ]),
);

it("draws a curve for each run that has the metric, in the colour of the run", () => {
  const groups = RUNS.map((run, place) => ({ key: run.id, label: run.id, members: [place] }));
  const curves = comparedCurves("loss", series, IDS, groups, "range");
  expect(curves.map((curve) => [curve.key, curve.colour, curve.y[0]])).toEqual([
    ["a", 0, 1],
    ["b", 1, 3],
  ]);
});

it("draws the mean of a group with its range", () => {
  const groups = [{ key: "all", label: "all", members: [0, 1, 2] }];
  const [curve] = comparedCurves("loss", series, IDS, groups, "range");
  expect([curve?.y[0], curve?.band?.low[0], curve?.band?.high[0]]).toEqual([2, 1, 3]);
});

it("counts the runs of each metric", () => {
  expect([...countMetrics(RUNS)]).toEqual([
    ["loss", 2],
    ["acc", 1],
  ]);
});
