import { expect, it } from "vitest";
import {
  type Column,
  differencesFirst,
  groupRuns,
  isDifferent,
  listColumns,
  type Run,
  runLabels,
} from "./columns";

const run = (name: string, label: string, params: Run["params"], loss: number | "NaN"): Run =>
  ({
    name,
    phase: "succeeded",
    params,
    summary: { loss },
    preemptions: 0,
    started_at: "2026-01-01T00:00:00Z",
    ended_at: "2026-01-01T00:01:30Z",
    submitted_at: "2026-01-01T00:00:00Z",
    spec: { label, datasets: [], code: "c0de", git: null, environment: { python: "3.12" } },
  }) as unknown as Run;
const RUNS = [
  run("u/p/1", "fast", { lr: 0.1, model: "mlp" }, 1),
  run("u/p/2", "same", { lr: 0.2, model: "mlp" }, "NaN"),
  run("u/p/3", "same", { lr: 0.1, model: "mlp", depth: 3 }, "NaN"),
];
const columns = listColumns(RUNS);
const find = (key: string) => columns.find((column) => column.key === key) as Column;

it("lists the values of all runs, with gaps", () => {
  expect(find("params.depth").values).toEqual([null, null, 3]);
  expect(find("summary.loss").values).toEqual([1, Number.NaN, Number.NaN]);
  expect(find("run.duration_s").values).toEqual([90, 90, 90]);
  expect(columns.map((column) => column.key)).not.toContain("run.commit"); // no run has one
});

it("puts differences first", () => {
  expect(
    differencesFirst(columns.filter((column) => column.section === "Params")).map((c) => c.name),
  ).toEqual(["lr", "depth", "model"]);
  expect(isDifferent({ ...find("summary.loss"), values: [Number.NaN, Number.NaN] })).toBe(false);
});

it("groups runs by a value", () => {
  expect([...(groupRuns(columns, "params.lr") ?? [])]).toEqual([
    ["lr=0.1", [0, 2]],
    ["lr=0.2", [1]],
  ]);
  expect(groupRuns(columns, "params.gone")).toBeNull();
});

it("labels runs by what distinguishes them", () => {
  expect(runLabels(RUNS)).toEqual(["fast", "u/p/2", "u/p/3"]);
});
