import { expect, test } from "vitest";
import { cellText, cellValue, queryName, usualColumns, type Run } from "./columns";
import { tableLines } from "./groups";

const NOW = Date.parse("2026-01-01T01:00:00Z");
const run = (part: object) =>
  ({
    id: "a",
    name: "alice/mnist/12",
    phase: "running",
    submitted_at: "2026-01-01T00:00:00Z",
    started_at: "2026-01-01T00:58:20Z",
    ended_at: null,
    params: {},
    summary: {},
    note: "",
    spec: { params: {}, tags: {}, datasets: [], roles: [], project: "mnist" },
    ...part,
  }) as unknown as Run;
const text = (one: Run, column: string) => cellText(column, cellValue(one, column, NOW), NOW);

test("values are found as the query language finds them", () => {
  const one = run({
    latest: { "val acc": [4, 0.5], loss: [4, "NaN"] },
    summary: { "val acc": 0.75 },
    params: { lr: 1e-5 },
    spec: {
      params: { lr: 1, "opt.name": "sgd" },
      tags: { team: "vision" },
      datasets: [{ name: "mnist" }],
      roles: [],
    },
  });
  expect(text(one, "metrics.val acc")).toBe("0.75");
  expect(text(one, "metrics.loss")).toBe("NaN");
  expect(text(one, "params.lr")).toBe("1.000e-5");
  expect(text(one, "params.opt.name")).toBe("sgd");
  expect(text(one, "tags.team")).toBe("vision");
  expect(text(one, "dataset")).toBe("mnist");
  expect(text(one, "took")).toBe("1m 40s");
  expect(text(one, "submitted")).toBe("1h ago");
  expect(text(one, "metrics.constructor")).toBe("");
});

test("odd names stand in backquotes in a query", () => {
  expect(queryName("params.lr")).toBe("params.lr");
  expect(queryName("metrics.val acc")).toBe("metrics.`val acc`");
  expect(queryName("phase")).toBe("phase");
});

test("the usual columns have metrics, and params that differ", () => {
  const columns = usualColumns([
    run({ params: { lr: 1, epochs: 5 }, summary: { acc: 1 } }),
    run({ params: { lr: 2, epochs: 5 } }),
  ]);
  expect(columns).toContain("params.lr");
  expect(columns).toContain("metrics.acc");
  expect(columns).not.toContain("params.epochs");
});

test("groups have a heading with their count, and the last one may continue", () => {
  const runs = ["failed", "running", "running"].map((phase) => run({ phase }));
  expect(tableLines(runs, "phase", NOW, false).filter((line) => line.kind === "group")).toEqual([
    { kind: "group", text: "failed", count: 1, isComplete: true },
    { kind: "group", text: "running", count: 2, isComplete: false },
  ]);
  expect(tableLines(runs, "", NOW, true)).toHaveLength(3);
});
