import { expect, it } from "vitest";
import { listColumns, type Run } from "@/pages/compare/columns";
import { readView } from "@/pages/compare/compare_view";
import { comparedBlock } from "./compared_block";

const RUNS = [
  {
    params: { lr: 0.1 },
    summary: { acc: 1 },
    latest: { loss: [1, 2] },
    spec: { tags: { team: "a" }, roles: [] },
    phase: "running",
  },
  { params: { lr: 0.2 }, summary: {}, latest: { loss: [1, 3] }, spec: { roles: [] }, phase: "running" },
].map((run, place) => ({
  id: `run-0${place}`,
  submitted_at: "2026-01-01T00:00:00.000000Z",
  started_at: null,
  ended_at: null,
  ...run,
})) as unknown as Run[];
const columns = listColumns(RUNS);
const block = (address: string) =>
  comparedBlock(readView(new URLSearchParams(address)), ["run-00", "run-01"], ["loss"], columns);

it("keeps what is shown of the curves", () => {
  expect(block("x=elapsed&smooth=0.6&logy=1&group=tags.team")).toEqual({
    type: "curves",
    title: "",
    runs: ["run-00", "run-01"],
    metrics: ["loss"],
    x: "elapsed",
    smoothing: 0.6,
    log_x: false,
    log_y: true,
    group: "tags.team",
  });
});

it("names columns as the table of runs does", () => {
  expect(block("tab=table")).toMatchObject({
    type: "table",
    columns: ["name", "params.lr", "metrics.acc", "metrics.loss", "phase", "tags.team"],
  });
  expect(block("tab=scatter&sx=params.lr&sy=summary.acc")).toMatchObject({
    x: "params.lr",
    y: "metrics.acc",
  });
  expect(block("tab=parallel")).toMatchObject({ type: "parallel" });
});
