/** What the server knows of all runs of a view, also of those that are not loaded: the sizes of the groups, and the
 *  names that a filter may use. */
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { queryName, type Value } from "./columns";
import { toQuery, type View } from "./view";

// fields with values that the server counts as the table writes them
const COUNTED = /^(phase|user|project|queue|label|priority|(tags|params)\..+)$/s;
const CHANGES: readonly string[] = ["submitted", "phase", "tags", "name", "request", "archived", "deleted"];
const MAX_VALUES = 1000;
const POLL_MS = 10_000;
const GAP_MS = 3000; // the server counts all runs of the view

export type GroupCounts = ReadonlyMap<string, number>;
const NO_COUNTS: GroupCounts = new Map();

/** Returns the value of a group as a key of `GroupCounts`. */
export const groupKey = (value: Value): string => (value === null ? "" : String(value));

function filters(view: View) {
  const query = toQuery(view);
  delete query.sort;
  return query;
}

/** Returns how many runs each value of the view's group has; without those that the server does not count. */
export function useGroupCounts(view: View): GroupCounts {
  const { group } = view;
  const query = filters(view);
  const isCounted = COUNTED.test(group);
  const counts = usePolled<GroupCounts>(
    `counts ${isCounted ? JSON.stringify([group, query]) : ""}`,
    async () => {
      if (!isCounted) {
        return NO_COUNTS;
      }
      const found = await data(
        api.GET("/api/v1/runs/counts", { params: { query: { ...query, by: [group], limit: MAX_VALUES } } }),
      );
      return new Map(found.facets[0]?.values.map(({ value, count }) => [groupKey(value), count]));
    },
    () => (isCounted ? POLL_MS : null),
    {
      isAffected: (event) => isCounted && CHANGES.includes(event.change),
      intervalMs: () => null,
      gapMs: GAP_MS,
    },
  );
  return counts.data ?? NO_COUNTS;
}

/** Returns the names of a listing as a query writes them, the most frequent first within a kind. */
export function queryNames(found: Schemas["RunNamesOut"]): string[] {
  const of = (kind: string, names: readonly Schemas["NameCountOut"][]) =>
    names.map(({ name }) => queryName(`${kind}.${name}`));
  // a summary has mostly the names of metrics, and a query finds both by one name
  const metrics = [...found.metrics, ...found.summary];
  return [
    ...found.fields,
    ...new Set(of("metrics", metrics)),
    ...of("params", found.params),
    ...of("tags", found.tags),
  ];
}

/** Returns the names that a filter may use, of all runs that the view shows without its filter. The server looks at
 *  all runs for them, so the request waits until `isReady`: the rows come first. */
export function useQueryNames(view: View, isReady: boolean): readonly string[] {
  const query = filters({ ...view, filter: "" });
  const names = usePolled(
    `names ${isReady ? JSON.stringify(query) : ""}`,
    async () => (isReady ? queryNames(await data(api.GET("/api/v1/runs/names", { params: { query } }))) : []),
    () => null,
  );
  return names.data ?? [];
}
