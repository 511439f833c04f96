/** Data that is read again while it may change: after events of the server, else at intervals. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { isTemporary } from "./client";
import { followEvents, isGap, isStreaming, type ServerEvent } from "./events";

export interface Polled<T> {
  data: T | null;
  /** Of the newest read. With data there as well, the data is old: the server does not answer. */
  error: unknown;
  reload: () => void;
}

export interface Live<T> {
  /** Whether the data may be other after this event. */
  isAffected: (event: ServerEvent) => boolean;
  /** As `intervalMs`, while the stream of events is open: for what has no events. null: only after events. */
  intervalMs: (data: T) => number | null;
  /** From an answer to the next read after an event; default: 0.5 s. */
  gapMs?: number;
}

const RETRY_MS = 1000;
const GAP_MS = 500; // from an answer to the next read after an event: several events become one read

/** Reads data now, after each change of `key`, and `intervalMs` after each answer (null: never again). With `live`,
 *  it reads after events instead, as long as their stream is open. While the server does not answer, the data stays,
 *  and reading continues. A hidden page reads nothing until it is visible again. */
export function usePolled<T>(
  key: string,
  load: () => Promise<T>,
  intervalMs: (data: T) => number | null,
  live?: Live<T>,
): Polled<T> {
  const [state, setState] = useState<{ key: string; data: T | null; error: unknown }>({
    key,
    data: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  const latest = useRef({ load, intervalMs, live });
  latest.current = { load, intervalMs, live };
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    let isReading = false;
    let isStale = false; // an event came after the newest read began
    let newest: { data: T } | null = null; // null also after a failure
    const later = (ms: number) => {
      window.clearTimeout(timer);
      timer = window.setTimeout(document.hidden ? () => later(ms) : read, ms);
    };
    const schedule = () => {
      const { live: current, intervalMs: interval } = latest.current;
      window.clearTimeout(timer);
      const ms =
        isStale || newest === null
          ? (current?.gapMs ?? GAP_MS)
          : (current && isStreaming.peek() ? current.intervalMs : interval)(newest.data);
      if (ms !== null) {
        later(ms);
      }
    };
    const read = () => {
      isReading = true;
      isStale = false;
      latest.current
        .load()
        .then((data) => {
          if (!isOver) {
            isReading = false;
            newest = { data };
            setState({ key, data, error: null });
            schedule();
          }
        })
        .catch((error: unknown) => {
          if (!isOver) {
            isReading = false;
            newest = null;
            setState((old) => ({ key, data: old.key === key ? old.data : null, error }));
            if (isTemporary(error)) {
              later(RETRY_MS);
            }
          }
        });
    };
    read();
    const stops = latest.current.live
      ? [
          followEvents((event) => {
            if (!isStale && (isGap(event) || latest.current.live?.isAffected(event))) {
              isStale = true;
              if (!isReading) {
                schedule();
              }
            }
          }),
          isStreaming.subscribe(() => {
            if (newest !== null && !isReading && !isStale) {
              schedule();
            }
          }),
        ]
      : [];
    return () => {
      isOver = true;
      window.clearTimeout(timer);
      stops.forEach((stop) => stop());
    };
  }, [key, round]);
  const reload = useCallback(() => setRound((old) => old + 1), []);
  return state.key === key ? { ...state, reload } : { data: null, error: null, reload };
}
