/** Data of the cluster that is read again after events, and at intervals for what has none. */
import type { ServerEvent } from "@/api/events";
import { usePolled, type Polled } from "@/api/polling";

const POLL_MS = 4000;

/**
 * @param kinds of the events after which the data is read again
 * @param slowMs how often it is read while events arrive, for measured values; null: after events only
 */
export function useLive<T>(
  key: string,
  load: () => Promise<T>,
  kinds: readonly ServerEvent["kind"][],
  slowMs: number | null = null,
): Polled<T> {
  return usePolled(key, load, () => POLL_MS, {
    isAffected: (event) => event.change !== "values" && kinds.includes(event.kind),
    intervalMs: () => slowMs,
  });
}
