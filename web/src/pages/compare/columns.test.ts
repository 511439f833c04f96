import { expect, it } from "vitest";
import {
  isCutRow,
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
    attempt: null,
    attempts: [{ nodes: ["box", "box"], engine: "local", gpus: [[0], [1]] }],
    started_at: "2026-01-01T00:00:00Z",
    ended_at: "2026-01-01T00:01:30Z",
    submitted_at: "2026-01-01T00:00:00Z",
    spec: {
      label,
      datasets: [],
      code: "c0de",
      git: null,
      environment: { python: "3.12" },
      roles: [{ name: "worker", replicas: 2, resources: { cpu_milli: 1500, gpus: 1 } }],
    },
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

it("has the machines of the newest attempt and what was requested", () => {
  const hardware = columns.filter((column) => column.section === "Hardware");
  expect(Object.fromEntries(hardware.map((column) => [column.name, column.values[0]]))).toEqual({
    nodes: "box",
    engine: "local",
    GPUs: 2,
    replicas: 2,
    "CPUs requested": 1.5,
    "GPUs requested": 1,
  });
});

it("knows the rows that a listing may have cut", () => {
  const few = run("a/p/1", "one", { lr: 0.1, text: "short" }, 1);
  const params = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`p${i}`, i]));
  expect(isCutRow(few)).toBe(false);
  expect(isCutRow({ ...few, params })).toBe(true);
  expect(isCutRow({ ...few, params: { text: "x".repeat(256) } })).toBe(true);
  expect(isCutRow({ ...few, latest: { ["m".repeat(2100)]: [1, 2] } })).toBe(true);
});
