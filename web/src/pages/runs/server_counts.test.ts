import { expect, test } from "vitest";
import type { Run } from "./columns";
import { tableLines } from "./groups";
import { groupKey, queryNames } from "./server_counts";

const run = (id: string, lr: number | boolean | null): Run =>
  ({ id, name: `alice/p/${id}`, spec: { params: lr === null ? {} : { lr } }, params: {} }) as unknown as Run;

test("the heading of a group has the server's count, also of runs that are not loaded", () => {
  const counts = new Map([
    ["0.1", 300],
    ["true", 2],
    [groupKey(null), 7],
  ]);
  const runs = [run("1", 0.1), run("2", true), run("3", null), run("4", 5)];
  const headings = tableLines(runs, "params.lr", 0, false, counts).filter((line) => line.kind === "group");
  expect(headings.map(({ text, count, isComplete }) => [text, count, isComplete])).toEqual([
    ["0.1", 300, true],
    ["true", 2, true],
    ["", 7, true],
    ["5", 1, false], // not counted: as far as it is loaded
  ]);
});

test("names of metrics and of the summary are one, and odd names stand in backquotes", () => {
  const name = (text: string) => ({ name: text, count: 1 });
  const found = {
    total: 1,
    fields: ["phase"],
    metrics: [name("loss"), name("val acc")],
    summary: [name("loss"), name("best")],
    params: [name("lr")],
    tags: [],
    has_more: false,
  };
  expect(queryNames(found)).toEqual([
    "phase",
    "metrics.loss",
    "metrics.`val acc`",
    "metrics.best",
    "params.lr",
  ]);
});
