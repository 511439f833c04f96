/** What the table of runs shows, as it stands in the address: filter, order, grouping, columns. */
import type { paths } from "@/api/schema";
import { queryName } from "./columns";

type Query = NonNullable<paths["/api/v1/runs"]["get"]["parameters"]["query"]>;

export const SHOWN = ["current", "starred", "archived"] as const;
export type Shown = (typeof SHOWN)[number];

export interface View {
  filter: string; // words, or a query of the server's language
  sort: string; // "": newest first; `val_acc`, `-val_acc`
  group: string; // a column, or ""
  columns: readonly string[]; // empty: those of the page's own choice
  shown: Shown;
}

export const DEFAULT_VIEW: View = { filter: "", sort: "", group: "", columns: [], shown: "current" };

/** Returns whether a filter is a query, such as `val_acc > 0.9`, and no words to look for. */
export function isQuery(filter: string): boolean {
  return /[=<>~()`]|^\s*(params|metrics|summary|tags)\./.test(filter);
}

/** Reads a view from the address. Unknown values are as if they were absent. */
export function parseView(search: URLSearchParams): View {
  const shown = SHOWN.find((value) => value === search.get("show")) ?? "current";
  return {
    filter: search.get("filter") ?? "",
    sort: search.get("sort") ?? "",
    group: search.get("group") ?? "",
    columns: [...new Set(search.getAll("column"))].filter((name) => name !== ""),
    shown,
  };
}

/** Writes a view as an address: `?filter=…&sort=…`. What is as usual is left out. */
export function viewSearch(view: View): URLSearchParams {
  const search = new URLSearchParams();
  for (const [key, value] of [
    ["filter", view.filter],
    ["sort", view.sort],
    ["group", view.group],
    ["show", view.shown === "current" ? "" : view.shown],
  ] as const) {
    if (value !== "") {
      search.set(key, value);
    }
  }
  view.columns.forEach((name) => search.append("column", name));
  return search;
}

/** Returns the parameters of `GET /runs` for a view. The runs of trials are on the page of their study. */
export function toQuery(view: View): Query {
  const filter = view.filter.trim();
  const sort = view.group === "" ? view.sort : queryName(view.group);
  return {
    trials: 0,
    ...(filter === "" ? {} : isQuery(filter) ? { where: filter } : { text: filter }),
    ...(sort === "" ? {} : { sort }),
    ...(view.shown === "starred" ? { starred: 1 } : {}),
    ...(view.shown === "archived" ? { archived: "only" } : {}),
  };
}

/** Returns the next order when the head of a column is chosen: largest first, smallest first, the usual. */
export function nextSort(sort: string, column: string): string {
  return sort === `-${column}` ? column : sort === column ? "" : `-${column}`;
}
