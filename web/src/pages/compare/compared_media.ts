/** The same samples of several runs at the same step. */
import type { MediaItem } from "@/api/runs";

/** A sample: an item of each run, null where a run has none by then. */
export interface MediaRow {
  key: string;
  name: string;
  index: number;
  rank: number;
  items: readonly (MediaItem | null)[];
  isDifferent: boolean;
}

/** Returns the steps at which any of the runs has media, in order. */
export function mediaSteps(lists: readonly (readonly MediaItem[])[]): number[] {
  return [...new Set(lists.flatMap((list) => list.map((item) => item.step)))].sort((a, b) => a - b);
}

/** Returns the samples of a step by name. A run that has nothing of a name at the step shows its newest before. */
export function mediaRows(lists: readonly (readonly MediaItem[])[], step: number): MediaRow[] {
  const rows = new Map<string, { sample: MediaItem; index: number; items: (MediaItem | null)[] }>();
  for (const [place, list] of lists.entries()) {
    const newest = new Map<string, number>();
    const series = (item: MediaItem) => `${item.name}\n${item.rank}`;
    for (const item of list) {
      if (item.step <= step && item.step >= (newest.get(series(item)) ?? -Infinity)) {
        newest.set(series(item), item.step);
      }
    }
    // the n-th item of a name: two calls of `hop.log` at a step both begin with the index 0
    const counts = new Map<string, number>();
    for (const item of list) {
      if (item.step === newest.get(series(item))) {
        const index = counts.get(series(item)) ?? 0;
        counts.set(series(item), index + 1);
        const key = `${series(item)}\n${index}`;
        const row = rows.get(key) ?? { sample: item, index, items: lists.map(() => null) };
        row.items[place] = item;
        rows.set(key, row);
      }
    }
  }
  return [...rows]
    .map(([key, { sample, index, items }]) => ({
      key,
      name: sample.name,
      index,
      rank: sample.rank,
      items,
      isDifferent: items.some((item) => item?.digest !== items[0]?.digest),
    }))
    .sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.rank - b.rank || a.index - b.index));
}
