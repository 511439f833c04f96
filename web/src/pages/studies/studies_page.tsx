import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { api, data, type Schemas } from "@/api/client";
import { isStreaming } from "@/api/events";
import { isFinal, type Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { PhaseBadge } from "@/parts/phase";
import { runSeconds } from "@/pages/run/run_text";
import { useShortcuts } from "@/shell/keys";
import { formatAge, formatDuration, formatNumber } from "@/text/format";
import { endedTrials } from "./study_data";
import { useLive } from "./use_live";
import { type States, useStudyStates } from "./use_study_states";
import styles from "./studies.module.css";

const PAGE = 50;
const MAX_STUDIES = 1000;
const POLL_MS = 4000;

interface Row {
  run: Run;
  searcher: string;
  metric: string;
  ended: number | null;
  limit: number | null;
  best: number | null;
  params: string;
}

/** Returns a row for each study, from the list and from what is known of the study itself. */
export function studyRows(runs: readonly Run[], states: States): Row[] {
  return runs.map((run) => {
    const spec = (run.spec.study ?? {}) as {
      metric?: string;
      trials?: number | null;
      searcher?: { name?: string };
    };
    const state = states.get(run.id);
    const metric = spec.metric ?? "";
    const summary = run.summary[metric];
    return {
      run,
      searcher: spec.searcher?.name ?? "random",
      metric,
      ended: state ? endedTrials(state) : null,
      limit: spec.trials ?? null,
      best: state?.best?.value ?? (typeof summary === "number" ? summary : null),
      params: Object.entries(state?.best?.params ?? {})
        .map(([name, value]) => `${name}=${typeof value === "number" ? formatNumber(value) : String(value)}`)
        .join("  "),
    };
  });
}

function studyName(run: Run): string {
  return ((run.spec.study ?? {}) as { name?: string }).name ?? "";
}

const COLUMNS: readonly DataColumn<Row>[] = [
  {
    key: "study",
    title: "Study",
    value: ({ run }) => run.spec.label || studyName(run) || run.name,
    cell: ({ run }) => {
      return (
        <span class={styles["study"]}>
          <Link href={`/studies/${encodeURI(run.name)}`}>{run.spec.label || studyName(run) || run.name}</Link>
          <span class={page["quiet"]}>{run.name}</span>
        </span>
      );
    },
  },
  {
    key: "phase",
    title: "State",
    value: ({ run }) => run.phase,
    cell: ({ run }) => <PhaseBadge phase={run.phase} />,
  },
  { key: "searcher", title: "Searcher", value: (row) => row.searcher },
  {
    key: "trials",
    title: "Trials",
    value: (row) => row.ended,
    cell: ({ ended, limit }) => (ended === null ? "" : limit === null ? ended : `${ended}/${limit}`),
    isNumber: true,
  },
  {
    key: "best",
    title: "Best",
    value: (row) => row.best,
    cell: ({ best, metric }) =>
      best !== null && (
        <>
          <span class={page["quiet"]}>{metric}</span> {formatNumber(best)}
        </>
      ),
    isNumber: true,
  },
  { key: "params", title: "With", cell: (row) => <span class={styles["with"]}>{row.params}</span> },
  {
    key: "time",
    title: "Time",
    value: ({ run }) => runSeconds(run, serverNow()),
    cell: ({ run }) => {
      const seconds = runSeconds(run, serverNow());
      return seconds === null ? "" : formatDuration(seconds);
    },
    isNumber: true,
  },
  {
    key: "submitted",
    title: "Submitted",
    value: ({ run }) => run.submitted_at,
    cell: ({ run }) => <span title={run.submitted_at}>{formatAge(run.submitted_at, serverNow())}</span>,
  },
];

async function listStudies(count: number): Promise<Schemas["RunsOut"]> {
  return data(api.GET("/api/v1/runs", { params: { query: { studies: 1, limit: count } } }));
}

/** All studies, the newest first: `/studies?q=TEXT&sort=-best`. */
export function StudiesPage() {
  const [address, setAddress] = useSearchParams();
  const [, navigate] = useLocation();
  const [count, setCount] = useState(PAGE);
  const search = useRef<HTMLInputElement>(null);
  const text = address.get("q") ?? "";
  const { data: found, error } = useLive(
    `studies ${count}`,
    () => listStudies(count),
    ({ runs }) => (isStreaming.peek() && runs.every(isFinal) ? null : POLL_MS),
    (event) => event.kind === "study",
  );
  const [kept, setKept] = useState<Schemas["RunsOut"] | null>(null);
  useEffect(() => {
    if (found !== null) {
      setKept(found);
    }
  }, [found]);
  useShortcuts([
    { keys: "/", text: "Filter the studies", section: "Studies", run: () => search.current?.focus() },
  ]);
  const shown = found ?? kept; // a longer list keeps the shorter one until it is there
  const runs = useMemo(() => shown?.runs ?? [], [shown]);
  const states = useStudyStates(runs);
  const rows = useMemo(() => studyRows(runs, states), [runs, states]);
  const needle = text.trim().toLowerCase();
  const matching = useMemo(
    () =>
      rows.filter(({ run, searcher, params }) =>
        [run.name, run.spec.label ?? "", studyName(run), run.phase, searcher, params].some((each) =>
          each.toLowerCase().includes(needle),
        ),
      ),
    [rows, needle],
  );
  const change = (name: string, value: string) =>
    setAddress(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === "") {
          next.delete(name);
        } else {
          next.set(name, value);
        }
        return next;
      },
      { replace: true },
    );
  if (shown === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (shown.runs.length === 0) {
    return (
      <Empty
        title="No studies yet"
        command="hop search train.py -p lr=log:1e-4..1e-1 --metric val_acc --trials 20"
      >
        <p>A study tries values of parameters and finds the best.</p>
        <Button kind="primary" onClick={() => navigate("/new?search=1")}>
          New study
        </Button>
        <p>Or start one in a terminal, in the folder of a script:</p>
      </Empty>
    );
  }
  return (
    <div class={page["page"]}>
      <header class={page["head"]}>
        <h1>Studies</h1>
        <input
          ref={search}
          type="search"
          class={styles["search"]}
          placeholder="Filter by name, state, searcher or parameter"
          aria-label="filter studies"
          value={text}
          onInput={(event) => change("q", event.currentTarget.value)}
        />
        <Button kind="primary" onClick={() => navigate("/new?search=1")}>
          New study
        </Button>
      </header>
      <StaleNotice error={error} />
      {matching.length === 0 ? (
        <Empty title={`No study matches “${text}”`} />
      ) : (
        <DataTable
          label="studies"
          columns={COLUMNS}
          rows={matching}
          rowKey={({ run }) => run.id}
          sort={address.get("sort") ?? ""}
          onSort={(sort) => change("sort", sort)}
        />
      )}
      {shown.next !== null && count < MAX_STUDIES && (
        <div>
          <Button onClick={() => setCount(Math.min(MAX_STUDIES, count * 2))}>Show more studies</Button>
        </div>
      )}
    </div>
  );
}
