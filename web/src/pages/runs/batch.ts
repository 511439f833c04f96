/** One action on many runs, and the words about it. */
import { api, data, type Schemas } from "@/api/client";
import { formatBytes, formatCount } from "@/text/format";
import type { Run } from "./columns";

export type Action = Schemas["BatchIn"]["action"];
export type Batch = Schemas["BatchOut"];

const MAX_RUNS = 1000; // per request
const FINAL: readonly string[] = ["succeeded", "failed", "cancelled"];

export const isLive = (run: Run): boolean => !FINAL.includes(run.phase);
const count = (number: number): string => formatCount(number, "run");

/** Sends an action for any number of runs. Throws ApiError; refusals of single runs are in the results. */
export async function sendBatch(
  runs: readonly string[],
  action: Action,
  options: Partial<Schemas["BatchIn"]> = {},
): Promise<Batch> {
  const sum: Batch = { results: [] };
  for (let start = 0; start < runs.length; start += MAX_RUNS) {
    const body = { ...EMPTY, ...options, runs: runs.slice(start, start + MAX_RUNS), action };
    const part = await data(api.POST("/api/v1/runs/batch", { body }));
    sum.results = [...sum.results, ...part.results];
    if (part.frees_bytes !== undefined) {
      sum.frees_bytes = (sum.frees_bytes ?? 0) + part.frees_bytes;
    }
  }
  return sum;
}
const EMPTY = { tags: {}, untag: [], grace_s: 10, force: false, dry_run: false };

/** Returns sentences about what an action will do to these runs. */
export function consequences(action: Action, runs: readonly Run[], preview: Batch | null): string[] {
  const live = runs.filter(isLive).length;
  const ended = runs.length - live;
  switch (action) {
    case "stop":
      return [
        ...(live > 0
          ? [
              `${count(live)} will stop: a waiting run ends at once, the processes of a live run get SIGTERM, and SIGKILL after 10 s.`,
            ]
          : []),
        ...(ended > 0 ? [`${count(ended)} already ended, and will not change.`] : []),
      ];
    case "archive":
      return [
        `${count(ended)} will be archived: they stay as they are, and the table omits them unless you choose “archived”.`,
        ...(live > 0 ? [`${count(live)} cannot be archived before the end.`] : []),
      ];
    case "delete":
      return [
        `${count(ended)} will be deleted, with metrics, logs, checkpoints and the trials of studies. This cannot be undone.`,
        ...(live > 0 ? [`${count(live)} will be kept, because they have not ended: stop them first.`] : []),
        preview?.frees_bytes === undefined
          ? "Counting what this frees…"
          : `This frees about ${formatBytes(preview.frees_bytes)}.`,
      ];
    default:
      return [];
  }
}

/** Returns the runs that an action changes. */
export function affected(action: Action, runs: readonly Run[]): Run[] {
  return runs.filter((run) => (action === "stop" ? isLive(run) : !isLive(run)));
}
