import { useMemo } from "preact/hooks";
import { Link } from "wouter-preact";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { Empty } from "@/parts/notices";
import { formatDuration, formatNumber } from "@/text/format";
import { paramNames, ranked, shownParams, type StudyView, type Trial } from "./study_data";
import styles from "./studies.module.css";
import { TrialState } from "./trial_state";

const seconds = (trial: Trial): number | null =>
  trial.began_at === null || trial.reported_at === null ? null : trial.reported_at - trial.began_at;

function paramText(value: Trial["params"][string] | undefined): string {
  return typeof value === "number" ? formatNumber(value) : value === null ? "none" : String(value);
}

/** All trials, the best first. */
export function TrialsTab({
  view,
  sort,
  onSort,
  onTrial,
}: {
  view: StudyView;
  sort: string;
  onSort: (sort: string) => void;
  onTrial: (trial: string) => void;
}) {
  const { study, trials } = view;
  const rows = useMemo(() => ranked(study, trials), [trials, study.goal]);
  const names = useMemo(() => paramNames(trials), [trials]);
  const hasRuns = trials.some((trial) => trial.run !== null);
  const hasNotes = trials.some((trial) => trial.error ?? trial.stop_reason ?? trial.start_from);
  const columns = useMemo<DataColumn<Trial>[]>(
    () => [
      {
        key: "trial",
        title: "Trial",
        value: (trial) => Number(trial.trial),
        cell: (trial) => (
          <button
            type="button"
            class={styles["link"]}
            aria-label={`trial ${trial.trial}`}
            onClick={() => onTrial(trial.trial)}
          >
            {trial.trial}
          </button>
        ),
        isNumber: true,
      },
      {
        key: "state",
        title: "State",
        value: (trial) => trial.state,
        cell: (trial) => <TrialState state={trial.state} />,
      },
      {
        key: "epoch",
        title: study.unit === "step" ? "Step" : "Epoch",
        value: (trial) => trial.epoch,
        cell: (trial) => (trial.budget > 0 ? `${trial.epoch}/${trial.budget}` : trial.epoch),
        isNumber: true,
      },
      {
        key: "value",
        title: study.metric,
        value: (trial) => trial.value,
        cell: number((trial) => trial.value),
        isNumber: true,
      },
      {
        key: "best",
        title: "Best",
        value: (trial) => trial.best,
        cell: number((trial) => trial.best),
        isNumber: true,
      },
      ...names.map<DataColumn<Trial>>((name) => ({
        key: `params.${name}`,
        title: name,
        value: (trial) => shownParams(trial)[name],
        cell: (trial) => (Object.hasOwn(shownParams(trial), name) ? paramText(shownParams(trial)[name]) : ""),
        isNumber: trials.some((trial) => typeof trial.params[name] === "number"),
      })),
      {
        key: "time",
        title: "Time",
        value: seconds,
        cell: (trial) => {
          const taken = seconds(trial);
          return taken === null ? "" : formatDuration(taken);
        },
        isNumber: true,
      },
      ...(hasRuns
        ? [
            {
              key: "run",
              title: "Run",
              value: (trial: Trial) => trial.run_name ?? trial.run,
              cell: (trial: Trial) =>
                trial.run !== null && (
                  <Link href={`/runs/${encodeURI(trial.run_name ?? trial.run)}`}>
                    {trial.run_name ?? trial.run}
                  </Link>
                ),
            },
          ]
        : []),
      ...(hasNotes
        ? [
            {
              key: "note",
              title: "Note",
              cell: (trial: Trial) =>
                trial.error?.split("\n")[0] ??
                trial.stop_reason ??
                (trial.start_from === null ? "" : `from trial ${trial.start_from}`),
            },
          ]
        : []),
    ],
    [trials, names, study.metric, study.unit, hasRuns, hasNotes, onTrial],
  );
  if (trials.length === 0) {
    return (
      <Empty title="No trial yet">
        <p>The searcher proposes the first ones once the study runs.</p>
      </Empty>
    );
  }
  return (
    <DataTable
      label="trials"
      columns={columns}
      rows={rows}
      rowKey={(trial) => trial.trial}
      sort={sort}
      onSort={onSort}
      isMarked={(trial) => trial.trial === study.best?.trial}
    />
  );
}

function number(read: (trial: Trial) => number | null): (trial: Trial) => string {
  return (trial) => {
    const value = read(trial);
    return value === null ? "" : formatNumber(value);
  };
}
