import { signal } from "@preact/signals";
import { lazy, Suspense } from "preact/compat";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { api, ApiError, data } from "@/api/client";
import { CurveLegend } from "@/charts/curve_legend";
import { orderPanels } from "@/charts/panels";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { TabLinks } from "@/parts/tab_links";
import { AddToReport } from "@/pages/reports/add_to_report";
import { comparedBlock } from "@/pages/reports/compared_block";
import { formatCount } from "@/text/format";
import { compilePattern } from "@/text/pattern";
import { differencesFirst, isCutRow, listColumns, type Run, runLabels } from "./columns";
import styles from "./compare.module.css";
import { countMetrics } from "./compared_curves";
import { type CompareView, readView, TABS, type Tab, writeView } from "./compare_view";
import { CurvesTab } from "./curves_tab";
import { EnvironmentTab } from "./environment_tab";
import { ParallelTab } from "./parallel_tab";
import { ScatterTab } from "./scatter_tab";
import { TableTab } from "./table_tab";

const CodeTab = lazy(() => import("./code_tab").then((module) => module.CodeTab));
const MediaTab = lazy(() => import("./media_tab").then((module) => module.MediaTab));

const WITHOUT_LEGEND: ReadonlySet<Tab> = new Set(["table", "code", "environment"]);
const MAX_RUNS = 100; // of a request for series, or for short rows
const FEW_RUNS = 8; // of more, short rows are shown until the whole ones are there, or for good
const SHORT_TABS: ReadonlySet<Tab> = new Set(["curves"]); // they need only what short rows have
const MAX_PARALLEL = 3; // of six connections, so that the series do not wait for all runs
const POLL_MS = 5000;
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const TITLES: Record<Tab, string> = {
  curves: "Curves",
  table: "Table",
  scatter: "Scatter",
  parallel: "Parallel coordinates",
  media: "Media",
  code: "Code",
  environment: "Environment",
};

interface Loaded {
  runs: Run[];
  missing: string[];
}

/** Returns short rows of the runs in a few requests, without those that do not exist. */
async function listRuns(ids: readonly string[], signal: AbortSignal): Promise<Run[]> {
  const parts = Array.from({ length: Math.ceil(ids.length / MAX_RUNS) }, (_, index) =>
    ids.slice(index * MAX_RUNS, (index + 1) * MAX_RUNS),
  );
  const pages = await Promise.all(
    parts.map((id) => data(api.GET("/api/v1/runs", { params: { query: { id, archived: "any" } }, signal }))),
  );
  const found = new Map(pages.flatMap((page) => page.runs).map((run) => [run.id, run]));
  return ids.flatMap((id) => found.get(id) ?? []);
}

/** Returns the whole runs. Those that are `known` to have ended are not read again. */
async function loadRuns(
  ids: readonly string[],
  known: Map<string, Run>,
  signal: AbortSignal,
): Promise<Loaded> {
  const missing = new Set<string>();
  const due = ids.filter((id) => !FINAL.has(known.get(id)?.phase ?? ""));
  const loadNext = async (): Promise<void> => {
    const id = due.pop();
    if (id === undefined) {
      return;
    }
    try {
      known.set(id, await data(api.GET("/api/v1/runs/{id}", { params: { path: { id } }, signal })));
    } catch (error) {
      if (!(error instanceof ApiError && [400, 404, 422].includes(error.status))) {
        throw error;
      }
      known.delete(id);
      missing.add(id);
    }
    return loadNext();
  };
  await Promise.all(Array.from({ length: MAX_PARALLEL }, loadNext));
  return {
    runs: ids.flatMap((id) => known.get(id) ?? []),
    missing: ids.filter((id) => missing.has(id)),
  };
}

/** Returns short rows as they are enough for the curves of many runs; null where whole runs are needed. */
async function loadShort(ids: readonly string[], signal: AbortSignal): Promise<Loaded | null> {
  try {
    const runs = await listRuns(ids, signal);
    const found = new Set(runs.map((run) => run.id));
    return { runs, missing: ids.filter((id) => !found.has(id)) };
  } catch (error) {
    if (error instanceof ApiError && [400, 422].includes(error.status)) {
      return null; // one of the ids cannot be one
    }
    throw error;
  }
}

/**
 * Returns the runs, read again while one of them is live, and the error of the last attempt. Without `isWhole`, short
 * rows of many runs are enough: one request instead of one for each run.
 */
function useRuns(ids: readonly string[], isWhole: boolean): { loaded: Loaded | null; error: unknown } {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [error, setError] = useState<unknown>(null);
  const key = ids.join(" ");
  const known = useRef(new Map<string, Run>()).current; // whole runs, also of a tab before
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    for (const id of known.keys()) {
      if (!ids.includes(id)) {
        known.delete(id);
      }
    }
    const load = async () => {
      let isFinal = false;
      try {
        let now = known.size === 0 && ids.length > FEW_RUNS ? await loadShort(ids, abort.signal) : null;
        if (now === null || isWhole || now.runs.some(isCutRow)) {
          if (now !== null && !abort.signal.aborted) {
            setLoaded({ ...now, missing: [] });
          }
          now = await loadRuns(ids, known, abort.signal);
        }
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
  }, [key, isWhole]);
  return { loaded, error };
}

/** Runs side by side: `/compare?run=ID&run=ID`. All that is chosen here is in the address. */
export function ComparePage() {
  const [address, setAddress] = useSearchParams();
  const view = useMemo(() => readView(address), [address.toString()]);
  const ids = view.runs.slice(0, MAX_RUNS);
  const { loaded, error } = useRuns(ids, !SHORT_TABS.has(view.tab));
  const [highlight] = useState(() => signal<string | null>(null));
  const runs = loaded?.runs ?? [];
  const columns = useMemo(() => listColumns(runs), [runs]);
  const names = runLabels(runs);
  const labels = useMemo(() => names, [names.join("\n")]); // the same after a read that changed none
  const order = runs.map((run) => run.id).join(" ");
  const legend = useMemo(
    () => runs.map((run, colour) => ({ key: run.id, label: labels[colour] ?? run.name, colour })),
    [order, labels],
  );
  const hidden = useMemo(() => new Set(view.hidden), [view.hidden.join("\n")]);

  const newest = useRef({ view, setAddress });
  newest.current = { view, setAddress };
  const change = useCallback((part: Partial<CompareView>) => {
    newest.current.setAddress(writeView({ ...newest.current.view, ...part }), { replace: true });
  }, []);
  const hide = useCallback((to: ReadonlySet<string>) => change({ hidden: [...to] }), []);

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
  const isLive = runs.some((run) => !FINAL.has(run.phase));
  const parts = { runs, labels, columns, view, change, highlight, hidden };
  return (
    <div class={styles["page"]}>
      <header class={styles["header"]}>
        <h1>Compare {formatCount(runs.length, "run")}</h1>
        <TabLinks
          label="comparison"
          current={view.tab}
          tabs={TABS.map((tab) => ({
            key: tab,
            href: `/compare?${writeView({ ...view, tab }).toString()}`,
            title: TITLES[tab],
          }))}
        />
        <AddToReport
          block={() =>
            comparedBlock(
              view,
              runs.map((run) => run.id),
              orderPanels(countMetrics(runs), view.pins, compilePattern(view.search) ?? (() => true)),
              differencesFirst(columns),
            )
          }
        />
        {view.runs.length > ids.length && <p role="status">The first {MAX_RUNS} runs are shown.</p>}
        {loaded.missing.length > 0 && <p role="status">Not found: {loaded.missing.join(", ")}</p>}
      </header>
      {!WITHOUT_LEGEND.has(view.tab) && (view.group === "" || view.tab !== "curves") && (
        <CurveLegend series={legend} hidden={hidden} onHidden={hide} highlight={highlight} />
      )}
      {view.tab === "curves" && <CurvesTab {...parts} isLive={isLive} />}
      {view.tab === "table" && <TableTab {...parts} />}
      {view.tab === "scatter" && <ScatterTab {...parts} />}
      {view.tab === "parallel" && <ParallelTab {...parts} />}
      {view.tab === "environment" && <EnvironmentTab {...parts} />}
      <Suspense fallback={<Loading />}>
        {view.tab === "media" && <MediaTab {...parts} isLive={isLive} />}
        {view.tab === "code" && <CodeTab {...parts} />}
      </Suspense>
    </div>
  );
}
