/** The rows that are loaded so far, and how pages and events change them. */
import type { ServerEvent } from "@/api/events";
import type { Run } from "./columns";

export interface Rows {
  runs: readonly Run[];
  next: string | null; // `before` of the next page; null at the end
}

export const NO_ROWS: Rows = { runs: [], next: null };

/** Returns the page with the known objects of runs that have not changed, so that their rows are not drawn again. */
function withKnownRuns(rows: Rows, page: Rows): Rows {
  const known = new Map(rows.runs.map((run) => [run.id, run]));
  const runs = page.runs.map((run) => {
    const old = known.get(run.id);
    return old !== undefined && JSON.stringify(old) === JSON.stringify(run) ? old : run;
  });
  return { ...page, runs };
}

/** Adds a page at the end. */
export function addPage(rows: Rows, page: Rows): Rows {
  const known = new Set(rows.runs.map((run) => run.id));
  return { runs: [...rows.runs, ...page.runs.filter((run) => !known.has(run.id))], next: page.next };
}

/** Replaces the beginning by a newer first page. Rows after its last run stay. */
export function replaceFirstPage(rows: Rows, newer: Rows): Rows {
  const page = withKnownRuns(rows, newer);
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

/** Applies events in their order to the runs that are loaded. Returns the same rows if they change nothing. */
export function applyEvents(rows: Rows, events: readonly ServerEvent[]): Rows {
  const changed = new Map<string, Run | null>(); // null: deleted
  const subjects = new Set(events.map((event) => event.subject));
  for (const old of rows.runs.filter((run) => subjects.has(run.id))) {
    for (const event of events) {
      const run = changed.get(old.id) === undefined ? old : changed.get(old.id);
      const fresh = event.subject === old.id && run ? applyEvent(run, event) : undefined;
      if (fresh !== undefined) {
        changed.set(old.id, fresh);
      }
    }
  }
  if (changed.size === 0) {
    return rows;
  }
  const runs = rows.runs.flatMap((run) => {
    const fresh = changed.get(run.id);
    return fresh === null ? [] : [fresh ?? run];
  });
  return { ...rows, runs };
}

/** Returns the run after an event of it, null if it was deleted, undefined if nothing changed. */
function applyEvent(old: Run, event: ServerEvent): Run | null | undefined {
  if (event.change === "deleted") {
    return null;
  }
  const { run } = event;
  return run
    ? {
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
      }
    : undefined;
}
