/** The rows that are loaded so far, and how pages and events change them. */
import type { ServerEvent } from "@/api/events";
import type { Run } from "./columns";

export interface Rows {
  runs: readonly Run[];
  next: string | null; // `before` of the next page; null at the end
}

export const NO_ROWS: Rows = { runs: [], next: null };

/** Adds a page at the end. */
export function addPage(rows: Rows, page: Rows): Rows {
  const known = new Set(rows.runs.map((run) => run.id));
  return { runs: [...rows.runs, ...page.runs.filter((run) => !known.has(run.id))], next: page.next };
}

/** Replaces the beginning by a newer first page. Rows after its last run stay. */
export function replaceFirstPage(rows: Rows, page: Rows): Rows {
  const last = page.runs.at(-1)?.id;
  const index = rows.runs.findIndex((run) => run.id === last);
  if (page.next === null || index < 0 || index === rows.runs.length - 1) {
    return page;
  }
  const fresh = new Set(page.runs.map((run) => run.id));
  return {
    runs: [...page.runs, ...rows.runs.slice(index + 1).filter((run) => !fresh.has(run.id))],
    next: rows.next,
  };
}

/** Applies an event of a run that is loaded. Returns the same rows if it changes nothing. */
export function applyEvent(rows: Rows, event: ServerEvent): Rows {
  const index = rows.runs.findIndex((run) => run.id === event.subject);
  const old = rows.runs[index];
  if (old === undefined) {
    return rows;
  }
  const runs = [...rows.runs];
  if (event.change === "deleted") {
    runs.splice(index, 1);
    return { ...rows, runs };
  }
  const { run } = event;
  if (!run) {
    return rows;
  }
  runs[index] = {
    ...old,
    phase: run.phase,
    params: run.params,
    summary: run.summary,
    latest: run.latest,
    note: run.note,
    archived: run.archived,
    stop_requested: run.stop_requested,
    started_at: run.started_at,
    ended_at: run.ended_at,
    spec: { ...old.spec, label: run.label, tags: run.tags },
  };
  return { ...rows, runs };
}
