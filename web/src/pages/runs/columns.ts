/** Columns of the table of runs. Their names are those of the query language: `phase`, `params.lr`, `metrics.loss`. */
import type { Schemas } from "@/api/client";
import { formatAge, formatDuration, formatNumber } from "@/text/format";

export type Run = Schemas["RunOut"];
export type Value = string | number | boolean | null;

export const FIELDS: Readonly<Record<string, string>> = {
  phase: "Phase",
  name: "Name",
  user: "User",
  project: "Project",
  number: "Number",
  label: "Label",
  submitted: "Submitted",
  started: "Started",
  ended: "Ended",
  took: "Took",
  progress: "Progress",
  dataset: "Dataset",
  script: "Script",
  queue: "Queue",
  priority: "Priority",
  reason: "Reason",
  note: "Note",
  tags: "Tags",
};
const FIRST: readonly string[] = ["phase", "name", "user", "submitted", "took", "dataset"];
const UNSORTED: readonly string[] = ["progress", "tags"]; // not in the query language
const MAX_METRICS = 4;
const MAX_PARAMS = 4;

const WIDTHS: Readonly<Record<string, number>> = {
  phase: 112,
  name: 240,
  user: 100,
  submitted: 100,
  started: 100,
  ended: 100,
  took: 90,
  number: 80,
  priority: 80,
  reason: 260,
  note: 220,
  tags: 200,
};

export const columnTitle = (name: string): string =>
  FIELDS[name] ?? name.replace(/^(params|metrics|tags)\./, "");
export const columnKind = (name: string): string => (name in FIELDS ? "" : (name.split(".")[0] ?? ""));
export const columnWidth = (name: string): number =>
  WIDTHS[name] ??
  Math.min(240, Math.max(90, 30 + 7.5 * columnTitle(name).length + 6.5 * columnKind(name).length));
export const isSortable = (name: string): boolean => !UNSORTED.includes(name);
export const isRightAligned = (name: string): boolean =>
  ["took", "number", "priority"].includes(name) || name.startsWith("metrics.") || name.startsWith("params.");

/** Returns a column's name in the query language: odd names stand in backquotes. */
export function queryName(name: string): string {
  const match = /^(params|metrics|tags)\.(.*)$/s.exec(name);
  const [prefix, rest] = match ? [`${match[1]}.`, match[2] ?? ""] : ["", name];
  return /^[A-Za-z_][\w./-]*$/.test(rest) || rest.includes("`") ? name : `${prefix}\`${rest}\``;
}

/** Keeps the result for each run: many cells read it, and a run that changes is another object. */
function keptOfRun<T>(make: (run: Run) => T): (run: Run) => T {
  const kept = new WeakMap<Run, T>();
  return (run) => {
    let made = kept.get(run);
    if (made === undefined) {
      made = make(run);
      kept.set(run, made);
    }
    return made;
  };
}

export const params = keptOfRun<Readonly<Record<string, Value>>>((run) => ({
  ...run.spec.params,
  ...run.params,
}));

/** Returns the values of a run's metrics: the summary before the latest. */
export const metrics = keptOfRun<Readonly<Record<string, number | string>>>((run) => {
  const latest = Object.entries(run.latest ?? {}).map(([name, pair]) => [name, pair[1]] as const);
  return { ...Object.fromEntries(latest), ...run.summary };
});

export function displayName(run: Run): string {
  return run.spec.label ? run.spec.label : run.name;
}

function script(run: Run): string {
  const command = run.spec.roles[0]?.command ?? [];
  return run.spec.study ? "" : (command.find((word) => /\.(py|ipynb|sh)$/.test(word)) ?? command[0] ?? "");
}

/** Returns how long the attempts of a run have taken, in seconds; null before the first. */
export function tookSeconds(run: Run, now: number): number | null {
  if (run.started_at === null) {
    return null;
  }
  return ((run.ended_at === null ? now : Date.parse(run.ended_at)) - Date.parse(run.started_at)) / 1000;
}

/** Returns the value of a column, of which the text is made; null where the run has none. */
export function cellValue(run: Run, column: string, now: number): Value {
  const dot = column.indexOf(".");
  const rest = column.slice(dot + 1);
  const own = <T>(values: Readonly<Record<string, T>>): T | null =>
    Object.hasOwn(values, rest) ? (values[rest] ?? null) : null;
  switch (dot < 0 || column in FIELDS ? "" : column.slice(0, dot)) {
    case "params":
      return own(params(run));
    case "metrics":
      return own(metrics(run));
    case "tags":
      return own(run.spec.tags ?? {});
  }
  const [user = "", project = "", number = ""] = run.name.split("/");
  switch (column) {
    case "phase":
      return run.phase;
    case "name":
      return run.name;
    case "user":
      return user;
    case "project":
      return project;
    case "number":
      return Number(number);
    case "label":
      return run.spec.label || null;
    case "submitted":
      return run.submitted_at;
    case "started":
      return run.started_at;
    case "ended":
      return run.ended_at;
    case "took":
      return tookSeconds(run, now);
    case "progress":
      return run.progress?.total ? run.progress.done / run.progress.total : null;
    case "dataset":
      return run.spec.datasets?.map((dataset) => dataset.name).join(" ") || null;
    case "script":
      return script(run) || null;
    case "queue":
      return run.spec.queue ?? null;
    case "priority":
      return run.spec.priority ?? null;
    case "reason":
      return run.exit?.reason || run.hold_detail || null;
    case "position":
      return run.position;
    case "note":
      return run.note || null;
    case "tags":
      return (
        Object.entries(run.spec.tags ?? {})
          .map(([key, value]) => `${key}=${value}`)
          .join(" ") || null
      );
    default:
      return null;
  }
}

/** Returns the text of a cell. */
export function cellText(column: string, value: Value, now: number): string {
  if (value === null) {
    return "";
  }
  if (["submitted", "started", "ended"].includes(column)) {
    return formatAge(String(value), now);
  }
  if (column === "took") {
    return formatDuration(Number(value));
  }
  if (column === "progress") {
    return `${Math.floor(100 * Number(value))}%`;
  }
  return typeof value === "number" || column.startsWith("metrics.")
    ? formatNumber(value as number)
    : String(value);
}

function names(runs: readonly Run[], of: (run: Run) => Record<string, unknown>): string[] {
  const counts = new Map<string, number>();
  for (const run of runs) {
    Object.keys(of(run)).forEach((name) => counts.set(name, (counts.get(name) ?? 0) + 1));
  }
  return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
}

/** Returns the names of all columns that these runs have, the most frequent first within a kind. */
export function knownColumns(runs: readonly Run[]): string[] {
  return [
    ...Object.keys(FIELDS),
    ...names(runs, metrics).map((name) => `metrics.${name}`),
    ...names(runs, params).map((name) => `params.${name}`),
    ...names(runs, (run) => run.spec.tags ?? {}).map((name) => `tags.${name}`),
  ];
}

/** Returns the columns of a view without a choice of its own: fields, metrics, and params that differ. */
export function usualColumns(runs: readonly Run[]): string[] {
  const differing = names(runs, params).filter(
    (name) => new Set(runs.map((run) => JSON.stringify(params(run)[name]))).size > 1,
  );
  return [
    ...FIRST,
    ...names(runs, metrics)
      .slice(0, MAX_METRICS)
      .map((name) => `metrics.${name}`),
    ...differing.slice(0, MAX_PARAMS).map((name) => `params.${name}`),
    "tags",
  ];
}
