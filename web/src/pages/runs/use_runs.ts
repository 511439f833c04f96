/** The runs of a view: read in pages as the user scrolls, and kept up to date. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, ApiError, data } from "@/api/client";
import { followEvents, isStreaming } from "@/api/events";
import type { Run } from "./columns";
import { addPage, applyEvent, NO_ROWS, replaceFirstPage, type Rows } from "./run_rows";
import { toQuery, viewSearch, type View } from "./view";

const PAGE = 200;
const POLL_MS = 4000;
const SETTLE_MS = 300; // several events become one request

export interface Listing {
  runs: readonly Run[];
  isComplete: boolean; // no further page
  isLoading: boolean; // for the first time in this view; the rows of the view before are still there
  error: unknown; // of the newest request
  loadMore: () => void;
  refresh: () => void;
}

async function fetchPage(view: View, before: string | null, signal?: AbortSignal): Promise<Rows> {
  const query = { ...toQuery(view), limit: PAGE, ...(before === null ? {} : { before }) };
  const page = await data(api.GET("/api/v1/runs", { params: { query }, ...(signal ? { signal } : {}) }));
  return { runs: page.runs, next: page.next };
}

/** Returns the runs of a view. The hook keeps the rows of the view before until the first page is there. */
export function useRuns(view: View): Listing {
  const key = viewSearch({ ...view, columns: [] }).toString();
  const [rows, setRows] = useState(NO_ROWS);
  const [loadedKey, setLoadedKey] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const current = useRef(key);
  current.current = key;
  const isBusy = useRef(false);

  const refresh = useCallback(
    async (signal?: AbortSignal) => {
      try {
        const page = await fetchPage(view, null, signal);
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
    return () => abort.abort();
  }, [key]);

  const loadMore = useCallback(() => {
    if (isBusy.current || rows.next === null || loadedKey !== key) {
      return;
    }
    isBusy.current = true;
    fetchPage(view, rows.next)
      .then((page) => {
        if (current.current === key) {
          setRows((old) => addPage(old, page));
        }
      })
      .catch((failure: unknown) => {
        if (failure instanceof ApiError && failure.status === 409) {
          void latest.current(); // the order has changed meanwhile
        } else {
          setError(failure);
        }
      })
      .finally(() => (isBusy.current = false));
  }, [key, loadedKey, rows.next]);

  useEffect(() => {
    let settle = 0;
    const soon = () => {
      window.clearTimeout(settle);
      settle = window.setTimeout(() => void latest.current(), SETTLE_MS);
    };
    const stop = followEvents((event) => {
      if (event.kind === "reset") {
        soon();
      } else if (event.kind === "run" || event.kind === "study") {
        setRows((old) => applyEvent(old, event));
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
