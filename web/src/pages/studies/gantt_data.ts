/** The rows of the Gantt chart of a study: units on workers or partitions, or the runs of trials on nodes. */
import { type GanttBar, type GanttRow, packLanes, type Span } from "@/charts/gantt_rows";
import { isFinal, type Run } from "@/api/runs";
import { naturalOrder } from "@/text/natural_order";
import type { Unit } from "./study_data";

export type GanttBy = "worker" | "partition";

/** Returns the number of a trial, for its colour. */
export function trialNumber(trial: string): number {
  return /^\d{1,9}$/.test(trial) ? Number(trial) : 0;
}

/** Returns a row for each worker or partition, in their natural order. */
export function unitRows(units: readonly Unit[], by: GanttBy): GanttRow[] {
  const rows = new Map<string, GanttBar[]>();
  for (const unit of units) {
    const label = by === "worker" ? unit.worker : `partition ${unit.partition}`;
    const isEvaluation = unit.kind === "evaluate";
    const bar: GanttBar = {
      key: unit.trial,
      from: unit.began_at,
      to: unit.ended_at,
      colour: trialNumber(unit.trial),
      label: unit.trial,
      title: `trial ${unit.trial}, epoch ${unit.epoch}, partition ${unit.partition} on ${unit.worker}${
        isEvaluation ? ": evaluation" : ""
      }`,
      isLight: isEvaluation,
    };
    const bars = rows.get(label);
    if (bars) {
      bars.push(bar);
    } else {
      rows.set(label, [bar]);
    }
  }
  return [...rows]
    .sort(([one], [two]) => naturalOrder(one, two))
    .map(([label, bars]) => ({ label, bars: bars.sort((one, two) => one.from - two.from) }));
}

/** Returns the times from the last unit of an attempt to the first of the next: there were no workers then. */
export function attemptBreaks(units: readonly Unit[]): Span[] {
  const attempts = new Map<number, [number, number]>();
  for (const { attempt, began_at: from, ended_at: to } of units) {
    const known = attempts.get(attempt);
    attempts.set(attempt, known ? [Math.min(known[0], from), Math.max(known[1], to)] : [from, to]);
  }
  const spans = [...attempts].sort(([one], [two]) => one - two).map(([, span]) => span);
  return spans.slice(1).flatMap(([from], index) => {
    const end = spans[index]?.[1] ?? from;
    return from > end ? [[end, from] as const] : [];
  });
}

/** Returns the lanes of each node: a bar for each run of a trial, up to `now` while it runs. */
export function runRows(runs: readonly Run[], now: number): GanttRow[] {
  const nodes = new Map<string, GanttBar[]>();
  for (const run of runs) {
    if (run.started_at === null) {
      continue;
    }
    const trial = run.spec.tags?.["trial"] ?? "";
    const node = run.attempt?.nodes[0] ?? "";
    const bar: GanttBar = {
      key: trial,
      from: Date.parse(run.started_at) / 1000,
      to: (run.ended_at === null || !isFinal(run) ? now : Date.parse(run.ended_at)) / 1000,
      colour: trialNumber(trial),
      label: trial,
      title: `trial ${trial}: ${run.name}, ${run.phase}${run.preemptions > 0 ? `, ${run.preemptions} preempted` : ""}`,
    };
    nodes.set(node, [...(nodes.get(node) ?? []), bar]);
  }
  return [...nodes]
    .sort(([one], [two]) => naturalOrder(one, two))
    .flatMap(([node, bars]) => packLanes(node, bars));
}
