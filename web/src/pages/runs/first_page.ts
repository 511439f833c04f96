/** Reads pages of the listing. The first page is requested as the application starts, before its code is there. */
import { api, data } from "@/api/client";
import type { Rows } from "./run_rows";
import { parseView, toQuery, viewSearch, type View } from "./view";

const FIRST_PAGE = 100; // fills a large screen: more rows would delay the first
const PAGE = 200;
const EARLY_MS = 10_000; // an older answer is read again

let early: { key: string; at: number; page: Promise<Rows> } | null = null;

/** Returns what the rows of a view depend on, as text. */
export const rowsKey = (view: View): string => viewSearch({ ...view, columns: [] }).toString();

/** Reads the page after the run `before`, or the first one. Throws ApiError. */
export async function readPage(view: View, before: string | null, signal?: AbortSignal): Promise<Rows> {
  const query = { ...toQuery(view), ...(before === null ? { limit: FIRST_PAGE } : { limit: PAGE, before }) };
  const page = await data(api.GET("/api/v1/runs", { params: { query }, ...(signal ? { signal } : {}) }));
  return { runs: page.runs, next: page.next };
}

/** Requests the first page of the view in the address. `readFirstPage` has its answer, or its failure. */
export function startFirstPage(search: string): void {
  const view = parseView(new URLSearchParams(search));
  const page = readPage(view, null);
  page.catch(() => undefined); // without a session, the page is not shown
  early = { key: rowsKey(view), at: Date.now(), page };
}

/** Reads the first page, or takes the one that was requested as the application started. Throws ApiError. */
export async function readFirstPage(view: View, signal?: AbortSignal): Promise<Rows> {
  const started = early;
  early = null;
  if (started?.key === rowsKey(view) && Date.now() - started.at < EARLY_MS) {
    try {
      return await started.page;
    } catch {
      // read again: the session may have begun only now
    }
  }
  return readPage(view, null, signal);
}
