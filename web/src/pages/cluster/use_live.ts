/** Data of the cluster that is read again after events, and at intervals for what has none. */
import { useEffect, useRef } from "preact/hooks";
import { followEvents, isStreaming, type ServerEvent } from "@/api/events";
import { usePolled, type Polled } from "@/api/polling";

const SETTLE_MS = 500; // several events become one request
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
  const busy = useRef(0); // reads on their way: events wait for their end, so that reads never pile up
  const loadOnce = async () => {
    busy.current += 1;
    try {
      return await load();
    } finally {
      busy.current -= 1;
    }
  };
  const polled = usePolled(key, loadOnce, () => (isStreaming.value ? slowMs : POLL_MS));
  const reload = useRef(polled.reload);
  reload.current = polled.reload;
  const wanted = kinds.join(" ");
  useEffect(() => {
    let timer = 0;
    const settle = () => {
      if (busy.current > 0) {
        timer = window.setTimeout(settle, SETTLE_MS);
      } else {
        timer = 0;
        reload.current();
      }
    };
    const stop = followEvents((event) => {
      const isWanted = event.kind === "reset" || wanted.split(" ").includes(event.kind);
      if (isWanted && event.change !== "values" && timer === 0) {
        timer = window.setTimeout(settle, SETTLE_MS);
      }
    });
    return () => {
      window.clearTimeout(timer);
      stop();
    };
  }, [wanted]);
  return polled;
}
