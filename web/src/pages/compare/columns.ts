/** What runs are compared by: named values of each run. */
import type { Schemas } from "@/api/client";
import { formatBytes, formatNumber } from "@/text/format";

export type Run = Schemas["RunOut"];
export type Value = string | number | null;

/** Values of the same kind, one for each run; null where a run has none. */
export interface Column {
  section: string;
  name: string;
  key: string;
  values: readonly Value[];
}

const INFINITIES = new Set(["NaN", "Infinity", "-Infinity"]);
const toValue = (value: unknown): Value => {
  if (value === null || value === undefined) {
    return null;
  }
  if (typeof value === "number") {
    return value;
  }
  return typeof value === "string" ? value : JSON.stringify(value);
};
const toNumber = (value: number | string): Value =>
  typeof value === "string" && INFINITIES.has(value) ? Number(value) : value;

function seconds(run: Run): number | null {
  if (run.started_at === null || run.ended_at === null) {
    return null;
  }
  return (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000;
}

/** Returns what the newest attempt had, and what the run requested, role by role where there are several. */
function readHardware(run: Run): Record<string, unknown> {
  const attempt = run.attempt ?? run.attempts?.at(-1);
  const roles = run.spec.roles;
  const requested = roles.flatMap((role) => {
    const prefix = roles.length > 1 ? `${role.name}: ` : "";
    const { resources } = role;
    return [
      [`${prefix}replicas`, role.replicas],
      [`${prefix}CPUs requested`, resources?.cpu_milli === undefined ? null : resources.cpu_milli / 1000],
      [`${prefix}memory requested`, resources?.memory_bytes ? formatBytes(resources.memory_bytes) : null],
      [`${prefix}GPUs requested`, resources?.gpus ?? null],
      [`${prefix}GPU models requested`, resources?.gpu_models?.join(", ") || null],
      [`${prefix}image`, role.image || null],
    ];
  });
  return {
    nodes: attempt ? [...new Set(attempt.nodes)].sort().join(", ") : null,
    engine: attempt?.engine,
    GPUs: attempt?.gpus.reduce((count, of) => count + of.length, 0),
    ...(Object.fromEntries(requested) as Record<string, unknown>),
  };
}

const MAX_SHORT_VALUES = 64;
const MAX_SHORT_LENGTH = 2048; // with a further name of the longest, a short row may end
const MAX_SHORT_TEXT = 256;

/**
 * Whether a row of a listing may lack params, tags or metrics of its run, or the end of a text. The limits are those
 * of the server's summaries.
 */
export function isCutRow(run: Run): boolean {
  return [run.params, run.spec.tags ?? {}, run.latest ?? {}].some((values) => {
    const pairs = Object.entries(values);
    const texts = pairs.map(([name, value]) => name + (typeof value === "string" ? value : ""));
    return (
      pairs.length >= MAX_SHORT_VALUES ||
      texts.reduce((sum, text) => sum + text.length + 8, 0) > MAX_SHORT_LENGTH ||
      pairs.some(([, value]) => typeof value === "string" && value.length >= MAX_SHORT_TEXT)
    );
  });
}

type Read = (run: Run) => Record<string, unknown>;
const SECTIONS: readonly [section: string, prefix: string, read: Read][] = [
  ["Params", "params.", (run) => run.params],
  [
    "Summary",
    "summary.",
    (run) => Object.fromEntries(Object.entries(run.summary).map(([name, value]) => [name, toNumber(value)])),
  ],
  [
    "Latest metrics",
    "",
    (run) =>
      Object.fromEntries(
        Object.entries(run.latest ?? {}).map(([name, [, value]]) => [name, toNumber(value)]),
      ),
  ],
  [
    "Run",
    "run.",
    (run) => ({
      phase: run.phase,
      label: run.spec.label || null,
      duration_s: seconds(run),
      preemptions: run.preemptions,
      forked_from: run.forked_from_name,
      datasets: run.spec.datasets?.map((dataset) => `${dataset.name}:${dataset.version}`).join(", ") || null,
      commit: run.spec.git?.commit,
      branch: run.spec.git?.branch || null,
      uncommitted: run.spec.git?.dirty,
      code: run.spec.code?.slice(0, 12),
      submitted_at: run.submitted_at.replace(/\.\d+(?=Z$)/, ""),
    }),
  ],
  ["Tags", "tags.", (run) => run.spec.tags ?? {}],
  [
    "Environment",
    "environment.",
    (run) => ({
      python: run.spec.environment?.python || null,
      interpreter: run.spec.environment?.interpreter || null,
      requirements: run.spec.environment?.requirements,
      lock: run.spec.environment?.lock,
      ...run.spec.environment?.packages,
    }),
  ],
  ["Variables", "env.", (run) => ({ ...run.machine_env, ...run.spec.env })],
  ["Hardware", "hardware.", readHardware],
];

/** Returns all values of runs, section by section. */
export function listColumns(runs: readonly Run[]): Column[] {
  return SECTIONS.flatMap(([section, prefix, read]) => {
    const records = runs.map((run) => new Map(Object.entries(read(run))));
    const names = [...new Set(records.flatMap((record) => [...record.keys()]))];
    return names
      .map((name) => ({
        section,
        name,
        key: prefix + name,
        values: records.map((record) => toValue(record.get(name))),
      }))
      .filter((column) => column.values.some((value) => value !== null));
  });
}

/** Whether the runs differ in a value. */
export function isDifferent({ values }: Column): boolean {
  return values.some((value) => !Object.is(value, values[0]));
}

/** Returns the columns with those in which the runs differ first, and the order kept otherwise. */
export function differencesFirst(columns: readonly Column[]): Column[] {
  return [...columns.filter(isDifferent), ...columns.filter((column) => !isDifferent(column))];
}

export function isNumeric({ values }: Column): boolean {
  return values.every((value) => value === null || typeof value === "number");
}

export function formatValue(value: Value): string {
  return value === null ? "" : typeof value === "number" ? formatNumber(value) : value;
}

/** Returns the places of the runs of each group, by the value of a column; null without the column. */
export function groupRuns(columns: readonly Column[], key: string): Map<string, number[]> | null {
  const column = columns.find((each) => each.key === key);
  if (!column) {
    return null;
  }
  const groups = new Map<string, number[]>();
  for (const [place, value] of column.values.entries()) {
    const name = `${column.name}=${value === null ? "none" : formatValue(value)}`;
    groups.set(name, [...(groups.get(name) ?? []), place]);
  }
  return groups;
}

/** Returns the label of each run where no other has the same, else its name. */
export function runLabels(runs: readonly Run[]): string[] {
  const labels = runs.map((run) => run.spec.label ?? "");
  return runs.map((run, place) => {
    const label = run.spec.label ?? "";
    return label !== "" && labels.indexOf(label) === place && labels.lastIndexOf(label) === place
      ? label
      : run.name;
  });
}
