/** The runs that the blocks of a report show. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { isFinal, type Run } from "@/api/runs";

const IDS_PER_REQUEST = 100;
const POLL_MS = 5000;

export interface ReportRuns {
  byId: ReadonlyMap<string, Run>;
  isLoaded: boolean;
  error: unknown;
}

const NONE: ReportRuns = { byId: new Map(), isLoaded: false, error: null };
export const ReportRunsContext = createContext<ReportRuns>(NONE);

async function load(ids: readonly string[]): Promise<ReadonlyMap<string, Run>> {
  const found = new Map<string, Run>();
  for (let first = 0; first < ids.length; first += IDS_PER_REQUEST) {
    const query = { id: ids.slice(first, first + IDS_PER_REQUEST), limit: IDS_PER_REQUEST };
    const page = await data(api.GET("/api/v1/runs", { params: { query } }));
    page.runs.forEach((run) => found.set(run.id, run));
  }
  return found;
}

/** Reads the runs, again while one of them is live. */
export function useReportRuns(ids: readonly string[]): ReportRuns {
  const { data: byId, error } = usePolled(
    `report runs ${ids.join(" ")}`,
    () => load(ids),
    (runs) => ([...runs.values()].every(isFinal) ? null : POLL_MS),
  );
  return { byId: byId ?? NONE.byId, isLoaded: byId !== null, error };
}

/** The runs of a block that exist, in its order. */
export function useBlockRuns(ids: readonly string[]): Run[] {
  const { byId } = useContext(ReportRunsContext);
  return ids.flatMap((id) => byId.get(id) ?? []);
}

export function runLabel(run: Run): string {
  return run.spec.label ? run.spec.label : run.name;
}
