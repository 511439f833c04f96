import type { ComponentChildren } from "preact";
import { Suspense } from "preact/compat";
import { useEffect, useRef } from "preact/hooks";
import { Link, useParams, useSearch } from "wouter-preact";
import { api, ApiError, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, getRun, isFinal, isOfRun, type Run } from "@/api/runs";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import { TabLinks } from "@/parts/tab_links";
import { lazy } from "@/shell/lazy";
import { CheckpointsTab } from "./checkpoints_tab";
import { EventsTab } from "./events_tab";
import { ExitNotice } from "./exit_notice";
import { FilesTab } from "./files_tab";
import { LogTab } from "./log_tab";
import { MediaTab } from "./media_tab";
import { OverviewTab, useCommands } from "./overview_tab";
import { RunHeader } from "./run_header";
import styles from "./run_page.module.css";

const ConsoleTab = lazy(() => import("./console/console_tab").then((module) => module.ConsoleTab));
const CurvesTab = lazy(() => import("./curves_tab").then((module) => module.CurvesTab));

const TABS = {
  overview: "Overview",
  log: "Log",
  curves: "Curves",
  media: "Media",
  checkpoints: "Checkpoints",
  files: "Files",
  events: "Events",
  console: "Console",
} as const;
type Tab = keyof typeof TABS;

const LIVE_MS = 1000;
const WAITING_MS = 2000;
const ENDED_MS = 15_000; // notes and tags may still change
const PROGRESS_MS = 3000; // with events: how far a loop is, and what the run uses, have none

/** The page of a run, by its id or its name. */
export function RunPage() {
  const reference = decodeReference(useParams()["*"] ?? "");
  const id = useRef("");
  const {
    data: run,
    error,
    reload,
  } = usePolled(
    `run ${reference}`,
    () => getRun(reference),
    (found) => (isFinal(found) ? ENDED_MS : found.phase === "queued" ? WAITING_MS : LIVE_MS),
    {
      isAffected: (event) => id.current !== "" && isOfRun(event, id.current),
      intervalMs: (found) => (isFinal(found) || found.phase === "queued" ? null : PROGRESS_MS),
    },
  );
  id.current = run?.id ?? "";
  if (run === null) {
    if (error instanceof ApiError && error.status === 404) {
      return (
        <Empty title={`There is no run ${reference}`}>
          <p>It may have been deleted, or its name is another one.</p>
          <Link href="/runs">All runs</Link>
        </Empty>
      );
    }
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  return <RunView key={run.id} run={run} reference={reference} error={error} reload={reload} />;
}

function decodeReference(text: string): string {
  try {
    return decodeURIComponent(text).replace(/\/+$/, "");
  } catch {
    return text;
  }
}

function RunView({
  run,
  reference,
  error,
  reload,
}: {
  run: Run;
  reference: string;
  error: unknown;
  reload: () => void;
}) {
  const search = new URLSearchParams(useSearch());
  const tab = (Object.keys(TABS) as Tab[]).find((each) => each === search.get("tab")) ?? "overview";
  const commands = useCommands(run);
  const checkpoints = usePolled(
    `checkpoints ${run.id} ${run.phase}`,
    () =>
      allPages<Schemas["CheckpointsOut"]>((after) =>
        data(
          api.GET("/api/v1/runs/{id}/checkpoints", {
            params: { path: { id: run.id }, query: after === null ? {} : { after } },
          }),
        ),
      ),
    () => (isFinal(run) ? null : 2 * WAITING_MS),
    { isAffected: (event) => isOfRun(event, run.id, ["checkpoint"]), intervalMs: () => null },
  );
  const saved = checkpoints.data?.flatMap((page) => page.checkpoints) ?? [];
  const title = run.spec.label || run.name;
  useEffect(() => {
    document.title = `${title} · ${run.phase} · Hopyard`;
    return () => {
      document.title = "Hopyard";
    };
  }, [title, run.phase]);
  const contents: Record<Tab, () => ComponentChildren> = {
    overview: () => <OverviewTab run={run} commands={commands} />,
    log: () => <LogTab run={run} />,
    curves: () => <CurvesTab run={run} commands={commands} checkpoints={saved} />,
    media: () => <MediaTab run={run} />,
    checkpoints: () => <CheckpointsTab run={run} checkpoints={saved} reload={checkpoints.reload} />,
    files: () => <FilesTab run={run} />,
    events: () => <EventsTab run={run} commands={commands} />,
    console: () => <ConsoleTab run={run} />,
  };
  return (
    <div class={styles["page"]}>
      <StaleNotice error={error} />
      <RunHeader run={run} checkpoints={saved} reload={reload} />
      {run.phase === "failed" && <ExitNotice run={run} />}
      <TabLinks
        label="parts of the run"
        current={tab}
        tabs={(Object.keys(TABS) as Tab[]).map((each) => ({
          key: each,
          href: `/runs/${encodeURI(reference)}${each === "overview" ? "" : `?tab=${each}`}`,
          title: (
            <>
              {TABS[each]}
              {each === "checkpoints" && saved.length > 0 && <span> {saved.length}</span>}
            </>
          ),
        }))}
      />
      <div class={styles["content"]}>
        <Suspense fallback={<Loading />}>{contents[tab]()}</Suspense>
      </div>
    </div>
  );
}
