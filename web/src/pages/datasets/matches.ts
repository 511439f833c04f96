import type { Dataset } from "@/api/datasets";

/** Returns whether each word of the filter is in the name, the metric, or the newest version's user or message. */
export function matches(dataset: Dataset, filter: string): boolean {
  const text = [dataset.name, dataset.metric, dataset.newest?.created_by, dataset.newest?.message]
    .join("\n")
    .toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
