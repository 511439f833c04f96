import { expect, test } from "vitest";
import type { Run } from "@/api/runs";
import { attemptBreaks, runRows, unitRows } from "./gantt_data";
import type { Study, Unit } from "./study_data";
import { bestCurve } from "./best_tab";

const unit = (worker: string, trial: string, from: number, part: Partial<Unit> = {}): Unit => ({
  worker,
  trial,
  epoch: 0,
  partition: 1,
  kind: "train",
  began_at: from,
  ended_at: from + 1,
  attempt: 1,
  ...part,
});

test("units are rows of workers, or of partitions", () => {
  const units = [
    unit("worker-10", "0", 3),
    unit("worker-2", "1", 2),
    unit("worker-10", "1", 1, { kind: "evaluate" }),
  ];
  expect(unitRows(units, "worker").map((row) => [row.label, row.bars.map((bar) => bar.from)])).toEqual([
    ["worker-2", [2]],
    ["worker-10", [1, 3]],
  ]);
  expect(unitRows(units, "partition").map((row) => row.label)).toEqual(["partition 1"]);
  expect(unitRows(units, "worker")[1]?.bars[0]?.isLight).toBe(true);
});

test("between two attempts is a break", () => {
  const units = [unit("w", "0", 0), unit("w", "0", 5, { attempt: 2 }), unit("w", "1", 6, { attempt: 2 })];
  expect(attemptBreaks(units)).toEqual([[1, 5]]);
  expect(attemptBreaks(units.slice(1))).toEqual([]);
});

test("a run of a trial that still runs ends now", () => {
  const run = {
    name: "a/p/2",
    phase: "running",
    started_at: "1970-01-01T00:00:10Z",
    ended_at: null,
    preemptions: 0,
    attempt: { nodes: ["box"] },
    spec: { tags: { trial: "7" } },
  } as unknown as Run;
  const [row] = runRows([run, { ...run, started_at: null }], 25_000);
  expect([row?.label, row?.bars.map((bar) => [bar.key, bar.from, bar.to])]).toEqual(["box", [["7", 10, 25]]]);
});

test("the best value so far is a staircase", () => {
  const study = {
    metric: "acc",
    improvements: [
      { at: 100, trial: "0", step: 1, value: 0.5, trials: 1, reports: 1 },
      { at: 130, trial: "2", step: 1, value: 0.7, trials: 3, reports: 9 },
    ],
  } as unknown as Study;
  const curve = bestCurve(study, "elapsed", 40);
  expect([...curve.x]).toEqual([0, 30, 30, 40]);
  expect([...curve.y]).toEqual([0.5, 0.5, 0.7, 0.7]);
  expect([...bestCurve(study, "trials", 3).x]).toEqual([1, 3, 3]);
});
