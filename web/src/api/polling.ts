/** Data that is read again and again while it may change. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./client";

export interface Polled<T> {
  data: T | null;
  /** Of the newest read. With data there as well, the data is old: the server does not answer. */
  error: unknown;
  reload: () => void;
}

/** Reads data now, after each change of `key`, and `intervalMs` after each answer (null: never again). While the
 *  server does not answer, the data stays, and reading continues. A hidden page reads nothing. */
export function usePolled<T>(
  key: string,
  load: () => Promise<T>,
  intervalMs: (data: T) => number | null,
): Polled<T> {
  const [state, setState] = useState<{ key: string; data: T | null; error: unknown }>({
    key,
    data: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  const latest = useRef({ load, intervalMs });
  latest.current = { load, intervalMs };
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const later = (ms: number) => {
      timer = window.setTimeout(document.hidden ? () => later(ms) : read, ms);
    };
    const read = () => {
      latest.current
        .load()
        .then((data) => {
          if (!isOver) {
            setState({ key, data, error: null });
            const ms = latest.current.intervalMs(data);
            if (ms !== null) {
              later(ms);
            }
          }
        })
        .catch((error: unknown) => {
          if (!isOver) {
            setState((old) => ({ key, data: old.key === key ? old.data : null, error }));
            if (error instanceof ApiError && (error.status === 0 || error.status >= 500)) {
              later(RETRY_MS);
            }
          }
        });
    };
    read();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [key, round]);
  const reload = useCallback(() => setRound((old) => old + 1), []);
  return state.key === key ? { ...state, reload } : { data: null, error: null, reload };
}

const RETRY_MS = 1000;
