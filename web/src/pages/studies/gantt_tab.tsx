import { useMemo, useState } from "preact/hooks";
import { serverNow } from "@/api/answers";
import { usePolled } from "@/api/polling";
import { isFinal } from "@/api/runs";
import { GanttChart } from "@/charts/gantt_chart";
import { busyShare, spanOf } from "@/charts/gantt_rows";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { formatBytes, formatCount, formatDuration } from "@/text/format";
import { attemptBreaks, type GanttBy, runRows, unitRows } from "./gantt_data";
import { readTrialRuns, type StudyView, UnitsReader } from "./study_data";
import styles from "./studies.module.css";

const POLL_MS = 2000;

/** Which trial was trained where and when. */
export function GanttTab({ view }: { view: StudyView }) {
  return view.study.parallel === "mop" ? <UnitsGantt view={view} /> : <RunsGantt view={view} />;
}

function UnitsGantt({ view }: { view: StudyView }) {
  const { run, study } = view;
  const [reader] = useState(() => new UnitsReader(run.id));
  const [by, setBy] = useState<GanttBy>("worker");
  const [picked, setPicked] = useState<string | null>(null);
  const { data: units, error } = usePolled(
    `units ${run.id} ${run.phase}`,
    () => reader.read(),
    () => (isFinal(run) ? null : POLL_MS),
  );
  const rows = useMemo(() => unitRows(units ?? [], by), [units, by]);
  const breaks = useMemo(() => attemptBreaks(units ?? []), [units]);
  if (units === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const span = spanOf(rows);
  if (!span) {
    return (
      <Empty title="No unit of work has ended yet">
        <p>A unit is the training of a trial on one partition, or its evaluation.</p>
      </Empty>
    );
  }
  const away = breaks.reduce((sum, [from, to]) => sum + to - from, 0);
  const attended = span[1] - span[0] - away;
  return (
    <>
      <div class={page["bar"]}>
        <label>
          Rows
          <select value={by} onChange={(event) => setBy(event.currentTarget.value as GanttBy)}>
            <option value="worker">by worker</option>
            <option value="partition">by partition</option>
          </select>
        </label>
        <span class={page["quiet"]}>
          {formatCount(units.length, "unit")} and {formatCount(study.hops, "hop")} (
          {formatBytes(study.hop_bytes)}) in {formatDuration(attended)}
          {breaks.length > 0 && `, without ${formatDuration(away)} between attempts`}
        </span>
      </div>
      <GanttChart
        title={`${formatCount(units.length, "unit")} of ${formatCount(view.trials.length, "trial")}, ${formatCount(rows.length, "row")} by ${by}`}
        rows={rows}
        breaks={breaks}
        hasPath
        picked={picked}
        onPick={setPicked}
      />
      {by === "worker" && (
        <details class={styles["details"]}>
          <summary>Busy time of workers</summary>
          <ul>
            {rows.map((row) => (
              <li key={row.label}>
                {row.label}: {((100 * busyShare(row, span) * (span[1] - span[0])) / attended).toFixed(1)}%
                busy, {row.bars.length} units
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

function RunsGantt({ view }: { view: StudyView }) {
  const { run } = view;
  const [picked, setPicked] = useState<string | null>(null);
  const { data: runs, error } = usePolled(
    `trial runs ${run.id} ${run.phase}`,
    () => readTrialRuns(run.id),
    () => (isFinal(run) ? null : POLL_MS),
  );
  const rows = useMemo(() => runRows(runs ?? [], serverNow()), [runs]);
  if (runs === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (rows.length === 0) {
    return (
      <Empty title="No trial has started yet">
        <p>Each trial is a run of its own, which waits in the queue like any other.</p>
      </Empty>
    );
  }
  return (
    <GanttChart
      title={`${formatCount(runs.length, "run")} of ${formatCount(view.trials.length, "trial")}, ${formatCount(rows.length, "row")} by node`}
      rows={rows}
      picked={picked}
      onPick={setPicked}
    />
  );
}
