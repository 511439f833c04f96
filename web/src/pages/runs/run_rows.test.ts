import { expect, test } from "vitest";
import type { ServerEvent } from "@/api/events";
import type { Run } from "./columns";
import { addPage, applyEvents, replaceFirstPage, type Rows } from "./run_rows";

const run = (id: string, phase = "running") =>
  ({ id, phase, spec: { label: "", tags: {}, project: "p" }, summary: {} }) as unknown as Run;
const rows = (ids: string, next: string | null): Rows => ({
  runs: ids.split(",").map((id) => run(id)),
  next,
});
const ids = ({ runs }: Rows) => runs.map(({ id }) => id).join(",");

test("a page is added once", () => {
  expect(ids(addPage(rows("a,b,c", "c"), rows("c,d,e", "e")))).toBe("a,b,c,d,e");
});

test("a new first page keeps the rows after it", () => {
  const replaced = replaceFirstPage(rows("b,c,d,e,f", "f"), rows("a,b,c", "c"));
  expect([ids(replaced), replaced.next]).toEqual(["a,b,c,d,e,f", "f"]);
});

test("a run that has not changed stays the same object, so that its row is not drawn again", () => {
  const before = rows("a,b", null);
  const after = replaceFirstPage(before, { runs: [run("a"), run("b", "failed")], next: null });
  expect(after.runs.map((each, index) => each === before.runs[index])).toEqual([true, false]);
});

test("a first page that is all there is, or has nothing in common, replaces all rows", () => {
  expect(ids(replaceFirstPage(rows("a,b,c,d", null), rows("b,c", null)))).toBe("b,c");
  expect(ids(replaceFirstPage(rows("a,b,c,d", "d"), rows("x,y,z", "z")))).toBe("x,y,z");
});

test("a run that moved to the first page is not shown twice", () => {
  expect(ids(replaceFirstPage(rows("a,b,c,d,e,f", "f"), rows("e,a,b", "b")))).toBe("e,a,b,c,d,f");
});

test("an event changes its run only, or removes it", () => {
  const event = {
    kind: "run",
    change: "phase",
    subject: "b",
    detail: "succeeded",
    run: { phase: "succeeded", label: "best", tags: { team: "vision" }, summary: { acc: 1 } },
  } as unknown as ServerEvent;
  const before = rows("a,b,c", null);
  const changed = applyEvents(before, [event]);
  expect(changed.runs.map(({ phase }) => phase)).toEqual(["running", "succeeded", "running"]);
  expect(changed.runs[1]?.spec).toMatchObject({ label: "best", tags: { team: "vision" }, project: "p" });
  expect(ids(applyEvents(before, [{ ...event, change: "deleted" }, event]))).toBe("a,c");
  expect(applyEvents(before, [{ ...event, subject: "unknown" }])).toBe(before);
});
