/** Data that is read again after events, at most every two seconds, and never while a request is on its way. */
import type { ServerEvent } from "@/api/events";
import { type Polled, usePolled } from "@/api/polling";

const SETTLE_MS = 2000;

export function useLive<T>(
  key: string,
  load: () => Promise<T>,
  intervalMs: (data: T) => number | null,
  concerns: (event: ServerEvent) => boolean,
): Polled<T> {
  return usePolled(key, load, intervalMs, { isAffected: concerns, intervalMs, gapMs: SETTLE_MS });
}
