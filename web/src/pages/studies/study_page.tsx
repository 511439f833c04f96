import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { Link, useParams, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { ApiError } from "@/api/client";
import { isFinal } from "@/api/runs";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { PhaseBadge } from "@/parts/phase";
import { TabLinks } from "@/parts/tab_links";
import { Field, Time } from "@/pages/run/fields";
import { runSeconds } from "@/pages/run/run_text";
import { formatCount, formatDuration, formatNumber } from "@/text/format";
import { BestTab } from "./best_tab";
import { GanttTab } from "./gantt_tab";
import { ImportanceTab } from "./importance_tab";
import { ParallelTab } from "./parallel_tab";
import { RungsTab } from "./rungs_tab";
import { StudyActions } from "./study_actions";
import { endedTrials, StudyReader, type StudyView } from "./study_data";
import { TrialDialog } from "./trial_dialog";
import { TrialsTab } from "./trials_tab";
import { useLive } from "./use_live";
import styles from "./studies.module.css";

const TABS = {
  trials: "Trials",
  gantt: "Gantt",
  best: "Best so far",
  parallel: "Parallel coordinates",
  importance: "Importance",
  rungs: "Rungs",
} as const;
type Tab = keyof typeof TABS;

const LIVE_MS = 2000;
const ENDED_MS = 15_000; // its name and notes may still change

/** The page of a study, by the id or the name of its run: `/studies/ID?tab=gantt&trial=3&sort=-best`. */
export function StudyPage() {
  const reference = decode(useParams()["*"] ?? "");
  const reader = useMemo(() => new StudyReader(reference), [reference]);
  const {
    data: view,
    error,
    reload,
  } = useLive(
    `study ${reference}`,
    () => reader.read(),
    ({ run }) => (isFinal(run) ? ENDED_MS : LIVE_MS),
    (event) => event.subject === reader.id,
  );
  if (view === null) {
    if (error instanceof ApiError && [400, 404].includes(error.status)) {
      return (
        <Empty title={error.status === 404 ? `There is no study ${reference}` : error.message}>
          <Link href="/studies">All studies</Link>
        </Empty>
      );
    }
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  return <StudyContent key={view.run.id} view={view} reference={reference} error={error} reload={reload} />;
}

function decode(reference: string): string {
  try {
    return decodeURIComponent(reference);
  } catch {
    return reference;
  }
}

function StudyContent({
  view,
  reference,
  error,
  reload,
}: {
  view: StudyView;
  reference: string;
  error: unknown;
  reload: () => void;
}) {
  const { run, study } = view;
  const [address, setAddress] = useSearchParams();
  const [trial, setTrial] = useState<string | null>(address.get("trial"));
  const wanted = address.get("tab") ?? "";
  const tab: Tab = Object.hasOwn(TABS, wanted) ? (wanted as Tab) : "trials";
  const change = useCallback(
    (part: Record<string, string | null>) => {
      setAddress(
        (old) => {
          const next = new URLSearchParams(old);
          for (const [name, value] of Object.entries(part)) {
            if (value === null || value === "") {
              next.delete(name);
            } else {
              next.set(name, value);
            }
          }
          return next;
        },
        { replace: true },
      );
    },
    [setAddress],
  );
  const openTrial = useCallback(
    (name: string | null) => {
      setTrial(name);
      change({ trial: name });
    },
    [change],
  );
  const title = run.spec.label || run.name;
  useEffect(() => {
    document.title = `${title} · ${run.phase} · Hopyard`;
    return () => {
      document.title = "Hopyard";
    };
  }, [title, run.phase]);
  return (
    <div class={page["page"]}>
      <StaleNotice error={error} />
      <StudyHeader view={view} reload={reload} onTrial={openTrial} />
      <TabLinks
        label="parts of the study"
        current={tab}
        tabs={(Object.keys(TABS) as Tab[]).map((each) => ({
          key: each,
          title: each === "trials" ? `${TABS[each]} ${view.trials.length}` : TABS[each],
          href: `/studies/${encodeURI(reference)}${each === "trials" ? "" : `?tab=${each}`}`,
        }))}
      />
      {study.skipped > 0 && (
        <p class={page["quiet"]} role="status">
          {study.skipped} records of the journal have a form that this server cannot read.
        </p>
      )}
      {tab === "trials" && (
        <TrialsTab
          view={view}
          sort={address.get("sort") ?? ""}
          onSort={(sort) => change({ sort })}
          onTrial={openTrial}
        />
      )}
      {tab === "gantt" && <GanttTab view={view} />}
      {tab === "best" && <BestTab view={view} onTrial={openTrial} />}
      {tab === "parallel" && <ParallelTab view={view} onTrial={openTrial} />}
      {tab === "importance" && <ImportanceTab view={view} />}
      {tab === "rungs" && <RungsTab view={view} onTrial={openTrial} />}
      {trial !== null && <TrialDialog view={view} name={trial} onClose={() => openTrial(null)} />}
    </div>
  );
}

function StudyHeader({
  view,
  reload,
  onTrial,
}: {
  view: StudyView;
  reload: () => void;
  onTrial: (trial: string) => void;
}) {
  const { run, study } = view;
  const seconds = runSeconds(run, serverNow());
  const ended = endedTrials(study);
  const limit = study.trial_limit ?? (isFinal(run) ? view.trials.length : null);
  const counts = Object.entries(study.counts).filter(([, count]) => count > 0);
  return (
    <header class={styles["header"]}>
      <div class={page["head"]}>
        <div class={styles["names"]}>
          <h1>
            <Name text={run.spec.label || run.name} />
          </h1>
          <PhaseBadge phase={run.phase} />
          {run.stop_requested && !isFinal(run) && <span class={page["quiet"]}>stopping</span>}
        </div>
        <StudyActions view={view} reload={reload} />
      </div>
      {limit !== null && !isFinal(run) && (
        <div class={styles["progress"]}>
          <progress value={Math.min(ended, limit)} max={limit} aria-label="trials that have ended" />
          <span>
            {ended} of {formatCount(limit, "trial")}
          </span>
        </div>
      )}
      {run.phase === "failed" && run.exit && <p class={styles["failure"]}>{run.exit.reason}</p>}
      {study.stop_rule !== null && <p class={page["quiet"]}>Ended early: {study.stop_rule}</p>}
      <dl class={styles["fields"]}>
        <Field label="Best">
          {study.best === null ? (
            "no value yet"
          ) : (
            <>
              <strong>
                {study.metric} {formatNumber(study.best.value)}
              </strong>{" "}
              ({study.goal}), {study.unit} {study.best.step} of{" "}
              <button type="button" class={styles["link"]} onClick={() => onTrial(study.best?.trial ?? "")}>
                trial {study.best.trial}
              </button>
            </>
          )}
        </Field>
        {study.best !== null && (
          <Field label="With">
            <span class={styles["with"]}>
              {Object.entries(study.best.params)
                .map(
                  ([name, value]) =>
                    `${name}=${typeof value === "number" ? formatNumber(value) : String(value)}`,
                )
                .join("  ")}
            </span>
          </Field>
        )}
        <Field label="Searcher">
          {study.searcher}, {study.parallel === "mop" ? "trials hop between workers" : "each trial is a run"}
        </Field>
        <Field label="Trials">
          {counts.length === 0 ? "none yet" : counts.map(([state, count]) => `${count} ${state}`).join(", ")}
        </Field>
        <Field label="Run">{run.name}</Field>
        {seconds !== null && <Field label="Duration">{formatDuration(seconds)}</Field>}
        <Field label="Submitted">
          <Time at={run.submitted_at} />
        </Field>
        {study.resumed > 0 && <Field label="Driver">resumed {study.resumed} times</Field>}
        {study.continues !== null && (
          <Field label="Continues">
            <Link href={`/studies/${encodeURI(study.continues)}`}>{study.continues}</Link>
          </Field>
        )}
        {run.forked_from_name && study.continues === null && (
          <Field label="Forked from">
            <Link href={`/runs/${encodeURI(run.forked_from_name)}`}>{run.forked_from_name}</Link>
          </Field>
        )}
      </dl>
      {study.workers.some((each) => each.event !== "joined") && (
        <details class={styles["details"]}>
          <summary>Events of workers</summary>
          <ul>
            {study.workers.map((each, index) => (
              <li key={index}>
                {each.worker} {each.event} {each.detail}
              </li>
            ))}
          </ul>
        </details>
      )}
    </header>
  );
}
