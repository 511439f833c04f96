/** Data that is read again after events, at most every two seconds, and never while a request is on its way. */
import { useEffect, useRef } from "preact/hooks";
import { followEvents, type ServerEvent } from "@/api/events";
import { type Polled, usePolled } from "@/api/polling";

const SETTLE_MS = 2000;

export function useLive<T>(
  key: string,
  load: () => Promise<T>,
  intervalMs: (data: T) => number | null,
  concerns: (event: ServerEvent) => boolean,
): Polled<T> {
  const pending = useRef(0);
  const polled = usePolled(
    key,
    () => {
      pending.current += 1;
      return load().finally(() => (pending.current -= 1));
    },
    intervalMs,
  );
  const { reload } = polled;
  const latest = useRef(concerns);
  latest.current = concerns;
  useEffect(() => {
    let timer = 0;
    const later = () => {
      timer = window.setTimeout(() => {
        timer = 0;
        if (pending.current > 0) {
          later(); // to read again now would give up what is on its way
        } else {
          reload();
        }
      }, SETTLE_MS);
    };
    const stop = followEvents((event) => {
      if (timer === 0 && (event.kind === "reset" || latest.current(event))) {
        later();
      }
    });
    return () => {
      stop();
      window.clearTimeout(timer);
    };
  }, [reload]);
  return polled;
}
