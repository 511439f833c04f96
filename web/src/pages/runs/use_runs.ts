/** The runs of a view: read in pages as the user scrolls, and kept up to date. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "@/api/client";
import { followEvents, isGap, isStreaming, type ServerEvent } from "@/api/events";
import type { Run } from "./columns";
import { readFirstPage, readPage, rowsKey } from "./first_page";
import { addPage, applyEvents, NO_ROWS, replaceFirstPage } from "./run_rows";
import type { View } from "./view";

const POLL_MS = 4000;
const SETTLE_MS = 300; // several events become one request
const DRAW_MS = 100; // several events are drawn together

export interface Listing {
  runs: readonly Run[];
  isComplete: boolean; // no further page
  isLoading: boolean; // for the first time in this view; the rows of the view before are still there
  error: unknown; // of the newest request
  loadMore: () => void;
  refresh: () => void;
}

/** Returns the runs of a view. The hook keeps the rows of the view before until the first page is there. */
export function useRuns(view: View): Listing {
  const key = rowsKey(view);
  const [rows, setRows] = useState(NO_ROWS);
  const [loadedKey, setLoadedKey] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const current = useRef(key);
  current.current = key;
  const nextPage = useRef<AbortController | null>(null); // of the request for the next page

  const refresh = useCallback(
    async (signal?: AbortSignal) => {
      try {
        const page = await readFirstPage(view, signal);
        if (current.current === key) {
          setRows((old) => (loadedKey === key ? replaceFirstPage(old, page) : page));
          setLoadedKey(key);
          setError(null);
        }
      } catch (failure) {
        if (current.current === key && !(failure instanceof DOMException)) {
          setError(failure);
        }
      }
    },
    [key, loadedKey],
  );
  const latest = useRef(refresh);
  latest.current = refresh;

  useEffect(() => {
    const abort = new AbortController();
    void latest.current(abort.signal);
    return () => {
      abort.abort();
      nextPage.current?.abort();
      nextPage.current = null;
    };
  }, [key]);

  const loadMore = useCallback(() => {
    if (nextPage.current !== null || rows.next === null || loadedKey !== key) {
      return;
    }
    const abort = new AbortController();
    nextPage.current = abort;
    readPage(view, rows.next, abort.signal)
      .then((page) => {
        if (current.current === key) {
          setRows((old) => addPage(old, page));
        }
      })
      .catch((failure: unknown) => {
        if (abort.signal.aborted) {
          return;
        }
        if (failure instanceof ApiError && failure.status === 409) {
          void latest.current(); // the order has changed meanwhile
        } else {
          setError(failure);
        }
      })
      .finally(() => {
        if (nextPage.current === abort) {
          nextPage.current = null;
        }
      });
  }, [key, loadedKey, rows.next]);

  useEffect(() => {
    let settle = 0;
    let draw = 0;
    let events: ServerEvent[] = [];
    const apply = () => {
      const together = events;
      [events, draw] = [[], 0];
      setRows((old) => applyEvents(old, together));
    };
    const soon = () => {
      window.clearTimeout(settle);
      settle = window.setTimeout(() => void latest.current(), SETTLE_MS);
    };
    const stop = followEvents((event) => {
      if (isGap(event)) {
        soon();
      } else if (event.kind === "run" || event.kind === "study") {
        events.push(event);
        draw ||= window.setTimeout(apply, DRAW_MS);
        if (event.change !== "values") {
          soon();
        }
      }
    });
    const poll = window.setInterval(() => {
      if (!isStreaming.value && !document.hidden) {
        void latest.current();
      }
    }, POLL_MS);
    return () => {
      stop();
      window.clearTimeout(settle);
      window.clearTimeout(draw);
      window.clearInterval(poll);
    };
  }, []);

  return {
    runs: rows.runs,
    isComplete: rows.next === null,
    isLoading: loadedKey !== key && error === null,
    error,
    loadMore,
    refresh: () => void latest.current(),
  };
}
