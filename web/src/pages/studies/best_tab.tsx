import { useMemo, useState } from "preact/hooks";
import { serverNow } from "@/api/answers";
import { isFinal } from "@/api/runs";
import { CurveChart } from "@/charts/curve_chart";
import type { CurveSeries } from "@/charts/curve_series";
import type { XKind } from "@/charts/axis_format";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { Empty } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { formatDuration, formatNumber } from "@/text/format";
import type { Study, StudyView } from "./study_data";
import styles from "./studies.module.css";

type Axis = "elapsed" | "trials" | "reports";
const AXES: Record<Axis, string> = { elapsed: "time", trials: "trials", reports: "reports" };

/** Returns a staircase through the improvements, up to `end`. */
export function bestCurve(study: Study, axis: Axis, end: number): CurveSeries {
  const start = study.improvements[0]?.at ?? 0;
  const xs: number[] = [];
  const ys: number[] = [];
  for (const improvement of study.improvements) {
    const x = axis === "elapsed" ? improvement.at - start : improvement[axis];
    const before = ys.at(-1);
    if (before !== undefined) {
      xs.push(x);
      ys.push(before);
    }
    xs.push(x);
    ys.push(improvement.value);
  }
  const [lastX, lastY] = [xs.at(-1), ys.at(-1)];
  if (lastX !== undefined && lastY !== undefined && end > lastX) {
    xs.push(end);
    ys.push(lastY);
  }
  return {
    key: "best",
    label: `best ${study.metric}`,
    colour: 0,
    x: Float64Array.from(xs),
    y: Float64Array.from(ys),
  };
}

/** The best value so far, and the trials that improved it. */
export function BestTab({ view, onTrial }: { view: StudyView; onTrial: (trial: string) => void }) {
  const { run, study, trials } = view;
  const [axis, setAxis] = useState<Axis>("elapsed");
  const [isLogY, setLogY] = useState(false);
  const first = study.improvements[0]?.at ?? 0;
  const lastReport = Math.max(first, ...trials.map((trial) => trial.reported_at ?? 0));
  const end =
    axis === "trials"
      ? trials.length
      : axis === "reports"
        ? 0
        : (isFinal(run) ? lastReport : Math.max(lastReport, serverNow() / 1000)) - first;
  const series = useMemo(
    () => [bestCurve(study, axis, end)],
    [study.improvements.length, axis, Math.round(end), study.metric],
  );
  const newest = useMemo(() => [...study.improvements].reverse(), [study.improvements]);
  const columns = useMemo<DataColumn<Study["improvements"][number]>[]>(
    () => [
      {
        key: "value",
        title: study.metric,
        value: (row) => row.value,
        cell: (row) => formatNumber(row.value),
        isNumber: true,
      },
      {
        key: "trial",
        title: "Trial",
        value: (row) => Number(row.trial),
        cell: (row) => (
          <button type="button" class={styles["link"]} onClick={() => onTrial(row.trial)}>
            {row.trial}
          </button>
        ),
        isNumber: true,
      },
      {
        key: "step",
        title: study.unit === "step" ? "Step" : "Epoch",
        value: (row) => row.step,
        isNumber: true,
      },
      {
        key: "at",
        title: "After",
        value: (row) => row.at,
        cell: (row) => formatDuration(row.at - first),
        isNumber: true,
      },
      { key: "trials", title: "Trials", value: (row) => row.trials, isNumber: true },
      { key: "reports", title: "Reports", value: (row) => row.reports, isNumber: true },
    ],
    [study.metric, study.unit, first, onTrial],
  );
  if (study.improvements.length === 0) {
    return (
      <Empty
        title="No trial has reported a value yet"
        command={`hop.log(${study.metric}=value, step=epoch)`}
      />
    );
  }
  return (
    <>
      <div class={page["bar"]}>
        <label>
          Over
          <select value={axis} onChange={(event) => setAxis(event.currentTarget.value as Axis)}>
            {(Object.keys(AXES) as Axis[]).map((each) => (
              <option key={each} value={each}>
                {AXES[each]}
              </option>
            ))}
          </select>
        </label>
        <label>
          <input
            type="checkbox"
            checked={isLogY}
            onChange={(event) => setLogY(event.currentTarget.checked)}
          />
          Logarithmic
        </label>
      </div>
      <section class={page["panel"]} aria-label="best value so far">
        <CurveChart
          title={`best ${study.metric}`}
          series={series}
          xKind={axis === "elapsed" ? "elapsed" : ("step" satisfies XKind)}
          xLabel={AXES[axis]}
          isLogY={isLogY}
          height={280}
          hasLegend={false}
          hasValues={false}
        />
      </section>
      <DataTable label="improvements" columns={columns} rows={newest} rowKey={(row) => String(row.reports)} />
    </>
  );
}
