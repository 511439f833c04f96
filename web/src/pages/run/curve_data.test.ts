import { expect, test } from "vitest";
import type { Checkpoint, Command } from "@/api/runs";
import { curveOf, marksOf, systemCharts } from "./curve_data";

const series = { steps: [0, 1, 2], values: [1, "NaN" as const, 3], times: [100, 102, null], count: 3 };

test("a curve is over steps, or over the times that are known", () => {
  expect([...curveOf("loss", series, "step", 100, []).x]).toEqual([0, 1, 2]);
  expect([...curveOf("loss", series, "step", 100, []).y]).toEqual([1, Number.NaN, 3]);
  expect([...curveOf("loss", series, "elapsed", 100, []).x]).toEqual([0, 2]);
  expect([...curveOf("loss", series, "time", 100, []).x]).toEqual([100, 102]);
});

test("marks are applied commands and checkpoints, in the order of the axis", () => {
  const at = (seconds: number) => new Date(seconds * 1000).toISOString();
  const command = (fields: object) =>
    ({
      kind: "set",
      state: "applied",
      step: 4,
      created_at: at(104),
      answered_at: at(105),
      changes: {},
      ...fields,
    }) as Command;
  const commands = [
    command({ changes: { lr: [0.1, 0.01] } }),
    command({ state: "refused", step: 1 }),
    command({ kind: "pause", step: null }),
  ];
  const checkpoints = [{ step: 2, created_at: at(107) } as Checkpoint];
  expect(marksOf("step", 100, commands, checkpoints)).toEqual([
    { x: 2, label: "checkpoint of step 2" },
    { x: 4, label: "lr 0.1 → 0.01" },
  ]);
  expect(marksOf("elapsed", 100, commands, checkpoints).map((mark) => mark.x)).toEqual([5, 5, 7]);
});

test("samples become a chart for each quantity, and a curve for each rank and GPU", () => {
  const sample = {
    t: 101,
    rank: 1,
    cpu_percent: 50,
    memory_bytes: 7,
    host_sent_bytes_per_s: null,
    host_received_bytes_per_s: null,
    read_bytes_per_s: null,
    write_bytes_per_s: null,
  };
  const gpus = [{ index: 0, utilisation_percent: null, memory_bytes: 9 }];
  const charts = systemCharts(
    [
      { ...sample, gpus },
      { ...sample, t: 100, gpus: [] },
    ],
    100,
  );
  expect(charts.map((chart) => chart.title)).toEqual(["GPU memory", "CPU (percent of one)", "Memory"]);
  expect(charts[0]?.series.map((curve) => curve.label)).toEqual(["rank 1, GPU 0"]);
  expect([...(charts[1]?.series[0]?.x ?? [])]).toEqual([0, 1]);
});
