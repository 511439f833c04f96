import { signal } from "@preact/signals";
import { lazy, Suspense } from "preact/compat";
import { useMemo, useState } from "preact/hooks";
import { brushedLines, type Brushes, type ParallelAxis } from "@/charts/parallel_axes";
import { Button } from "@/parts/button";
import { Empty, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { formatCount } from "@/text/format";
import { paramNames, shownParams, spaceOf, type StudyView } from "./study_data";
import styles from "./studies.module.css";

const ParallelChart = lazy(() => import("@/charts/parallel_chart").then((module) => module.ParallelChart));
const METRIC = "metric";
const MAX_AXES = 16;

/** Returns an axis for each param in which the trials differ, and one for the metric. */
export function parallelAxes({ study, trials }: StudyView): ParallelAxis[] {
  const params = paramNames(trials).map((name) => ({
    key: `params.${name}`,
    name,
    values: trials.map((trial) => {
      const value = shownParams(trial)[name] ?? null;
      return typeof value === "boolean" ? String(value) : value;
    }),
  }));
  return [
    ...params.filter((axis) => new Set(axis.values).size > 1).slice(0, MAX_AXES - 1),
    { key: METRIC, name: study.metric, values: trials.map((trial) => trial.best) },
  ];
}

/** A line for each trial through its params and its best value. */
export function ParallelTab({ view, onTrial }: { view: StudyView; onTrial: (trial: string) => void }) {
  const all = useMemo(() => parallelAxes(view), [view.trials, view.study.metric]);
  const [order, setOrder] = useState<readonly string[]>([]);
  const [brushes, setBrushes] = useState<Brushes>(new Map());
  const [colourBy, setColourBy] = useState<string | null>(METRIC);
  const [logAxes, setLogAxes] = useState<ReadonlySet<string>>(
    () => new Set(spaceOf(view.run).flatMap((each) => (each.log ? [`params.${each.name}`] : []))),
  );
  const [highlight] = useState(() => signal<string | null>(null));
  const byKey = new Map(all.map((axis) => [axis.key, axis]));
  const chosen = order.flatMap((key) => byKey.get(key) ?? []);
  const axes = chosen.length > 1 ? chosen : all;
  const { trials } = view;
  if (axes.length < 2) {
    return (
      <Empty title="Fewer than two values differ between the trials">
        <p>Parallel coordinates need trials with different parameters.</p>
      </Empty>
    );
  }
  const inside = brushedLines(axes, brushes, trials.length);
  return (
    <>
      <div class={page["bar"]} role="group" aria-label="axes">
        <label>
          Colours by
          <select value={colourBy ?? ""} onChange={(event) => setColourBy(event.currentTarget.value || null)}>
            <option value="">trial</option>
            {all.map((axis) => (
              <option key={axis.key} value={axis.key}>
                {axis.name}
              </option>
            ))}
          </select>
        </label>
        <output>
          {inside.length} of {formatCount(trials.length, "trial")} selected
        </output>
        {inside.length < trials.length && <Button onClick={() => setBrushes(new Map())}>Select all</Button>}
        {chosen.length > 1 && <Button onClick={() => setOrder([])}>Usual axes</Button>}
      </div>
      <div class={styles["figure"]}>
        <Suspense fallback={<Loading />}>
          <ParallelChart
            title="trials"
            axes={axes}
            keys={trials.map((trial) => trial.trial)}
            labels={trials.map((trial) => `trial ${trial.trial}`)}
            colourBy={byKey.get(colourBy ?? "") ?? null}
            highlight={highlight}
            brushes={brushes}
            onBrushes={setBrushes}
            logAxes={logAxes}
            onLogAxes={setLogAxes}
            onAxes={setOrder}
            onColourBy={setColourBy}
            onOpen={onTrial}
          />
        </Suspense>
      </div>
    </>
  );
}
