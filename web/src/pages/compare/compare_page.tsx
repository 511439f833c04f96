import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { api, ApiError, data } from "@/api/client";
import { CurveLegend } from "@/charts/curve_legend";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { listColumns, type Run, runLabels } from "./columns";
import styles from "./compare.module.css";
import { type CompareView, readView, TABS, type Tab, writeView } from "./compare_view";
import { CurvesTab } from "./curves_tab";
import { ParallelTab } from "./parallel_tab";
import { ScatterTab } from "./scatter_tab";
import { TableTab } from "./table_tab";

const MAX_RUNS = 100; // of a request for series
const POLL_MS = 5000;
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const TITLES: Record<Tab, string> = {
  curves: "Curves",
  table: "Table",
  scatter: "Scatter",
  parallel: "Parallel coordinates",
};

interface Loaded {
  runs: Run[];
  missing: string[];
}

async function loadRuns(ids: readonly string[], signal: AbortSignal): Promise<Loaded> {
  const missing: string[] = [];
  const found = await Promise.all(
    ids.map((id) =>
      data(api.GET("/api/v1/runs/{id}", { params: { path: { id } }, signal })).catch((error: unknown) => {
        if (error instanceof ApiError && [400, 404, 422].includes(error.status)) {
          missing.push(id);
          return null;
        }
        throw error;
      }),
    ),
  );
  return { runs: found.filter((run) => run !== null), missing };
}

/** Returns the runs, read again while one of them is live, and the error of the last attempt. */
function useRuns(ids: readonly string[]): { loaded: Loaded | null; error: unknown } {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [error, setError] = useState<unknown>(null);
  const key = ids.join(" ");
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const load = async () => {
      let isFinal = false;
      try {
        const now = await loadRuns(ids, abort.signal);
        isFinal = now.runs.every((run) => FINAL.has(run.phase));
        if (!abort.signal.aborted) {
          setLoaded(now);
          setError(null);
        }
      } catch (failure) {
        if (!abort.signal.aborted) {
          setError(failure);
        }
      }
      if (!isFinal && !abort.signal.aborted) {
        timer = window.setTimeout(() => void load(), POLL_MS);
      }
    };
    void load();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [key]);
  return { loaded, error };
}

/** Runs side by side: `/compare?run=ID&run=ID`. All that is chosen here is in the address. */
export function ComparePage() {
  const [address, setAddress] = useSearchParams();
  const view = useMemo(() => readView(address), [address.toString()]);
  const ids = view.runs.slice(0, MAX_RUNS);
  const { loaded, error } = useRuns(ids);
  const [highlight] = useState(() => signal<string | null>(null));
  const runs = loaded?.runs ?? [];
  const columns = useMemo(() => listColumns(runs), [runs]);
  const labels = useMemo(() => runLabels(runs), [runs]);

  const change = (part: Partial<CompareView>) =>
    setAddress(writeView({ ...view, ...part }), { replace: true });

  if (view.runs.length === 0) {
    return (
      <Empty title="No runs to compare">
        <p>
          Select runs in <Link href="/runs">the table of runs</Link>, and choose Compare there.
        </p>
      </Empty>
    );
  }
  if (!loaded) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (runs.length === 0) {
    return <Empty title="None of these runs exists" />;
  }
  const hidden = new Set(view.hidden);
  const parts = { runs, labels, columns, view, change, highlight, hidden };
  return (
    <div class={styles["page"]}>
      <header class={styles["header"]}>
        <h1>
          Compare {runs.length} {runs.length === 1 ? "run" : "runs"}
        </h1>
        <nav class={styles["tabs"]} aria-label="comparison">
          {TABS.map((tab) => (
            <Link
              key={tab}
              href={`/compare?${writeView({ ...view, tab }).toString()}`}
              aria-current={tab === view.tab ? "page" : undefined}
            >
              {TITLES[tab]}
            </Link>
          ))}
        </nav>
        {view.runs.length > ids.length && <p role="status">The first {MAX_RUNS} runs are shown.</p>}
        {loaded.missing.length > 0 && <p role="status">Not found: {loaded.missing.join(", ")}</p>}
      </header>
      {view.tab !== "table" && (view.group === "" || view.tab !== "curves") && (
        <CurveLegend
          series={runs.map((run, colour) => ({ key: run.id, label: labels[colour] ?? run.name, colour }))}
          hidden={hidden}
          onHidden={(to) => change({ hidden: [...to] })}
          highlight={highlight}
        />
      )}
      {view.tab === "curves" && <CurvesTab {...parts} isLive={runs.some((run) => !FINAL.has(run.phase))} />}
      {view.tab === "table" && <TableTab {...parts} />}
      {view.tab === "scatter" && <ScatterTab {...parts} />}
      {view.tab === "parallel" && <ParallelTab {...parts} />}
    </div>
  );
}
