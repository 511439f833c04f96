import { useMemo, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, isFinal, type Checkpoint, type Command, type Run } from "@/api/runs";
import { CurveChart } from "@/charts/curve_chart";
import type { Range } from "@/charts/curve_series";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { formatBytes } from "@/text/format";
import { curveOf, marksOf, systemCharts, type XAxis } from "./curve_data";
import { Section } from "./fields";
import styles from "./run_page.module.css";

const POLL_MS = 3000;
const MAX_POINTS = 1000;
const AXES: Record<XAxis, string> = { step: "step", elapsed: "time since the start", time: "time of day" };

/** All metrics of a run, and the use of its machines over the same axis of time. */
export function CurvesTab({
  run,
  commands,
  checkpoints,
}: {
  run: Run;
  commands: readonly Command[];
  checkpoints: readonly Checkpoint[];
}) {
  const [search, setSearch] = useSearchParams();
  const [filter, setFilter] = useState("");
  const [range, setRange] = useState<Range | null>(null);
  const axis = (Object.keys(AXES) as XAxis[]).find((each) => each === search.get("x")) ?? "step";
  const smoothing = Math.min(0.99, Math.max(0, Number(search.get("smoothing") ?? 0) || 0));
  const isLogY = search.get("log") === "y";
  const set = (name: string, value: string) => {
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        next.set(name, value);
        return next;
      },
      { replace: true },
    );
  };
  const interval = () => (isFinal(run) ? null : POLL_MS);
  const metrics = usePolled(
    `metrics ${run.id} ${isFinal(run)}`,
    () =>
      allPages<Schemas["MetricsOut"]>((after) =>
        data(
          api.GET("/api/v1/runs/{id}/metrics", {
            params: {
              path: { id: run.id },
              query: { max_points: MAX_POINTS, ...(after !== null && { after }) },
            },
          }),
        ),
      ),
    interval,
  );
  const system = usePolled(
    `system ${run.id} ${isFinal(run)}`,
    () =>
      data(
        api.GET("/api/v1/runs/{id}/system", {
          params: { path: { id: run.id }, query: { max_points: MAX_POINTS } },
        }),
      ),
    interval,
  );
  const start = run.started_at === null ? 0 : Date.parse(run.started_at) / 1000;
  const marks = useMemo(
    () => marksOf(axis, start, commands, checkpoints),
    [axis, start, commands, checkpoints],
  );
  const all = useMemo(
    () =>
      Object.assign(
        {},
        ...(metrics.data ?? []).map((page) => page.series),
      ) as Schemas["MetricsOut"]["series"],
    [metrics.data],
  );
  const charts = useMemo(
    () => systemCharts(system.data?.samples ?? [], axis === "time" ? 0 : start),
    [system.data, axis, start],
  );
  if (metrics.data === null) {
    return metrics.error === null ? <Loading /> : <ErrorNotice error={metrics.error} />;
  }
  const names = Object.keys(all).filter((name) => name.toLowerCase().includes(filter.toLowerCase()));
  const timeAxis = axis === "time" ? "time" : "elapsed";
  return (
    <>
      <div class={styles["tools"]}>
        <input
          type="search"
          placeholder="Filter metrics"
          aria-label="filter metrics"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <label>
          By{" "}
          <select
            value={axis}
            onChange={(event) => {
              setRange(null);
              set("x", event.currentTarget.value);
            }}
          >
            {Object.entries(AXES).map(([key, title]) => (
              <option key={key} value={key}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          Smoothing{" "}
          <input
            type="range"
            min="0"
            max="0.99"
            step="0.01"
            value={smoothing}
            onInput={(event) => set("smoothing", event.currentTarget.value)}
          />
        </label>
        <label>
          <input type="checkbox" checked={isLogY} onChange={() => set("log", isLogY ? "" : "y")} /> Log scale
        </label>
      </div>
      {Object.keys(all).length === 0 && (
        <Empty title="No metrics yet" command="hop.log(loss=loss, step=step)" />
      )}
      <div class={styles["charts"]}>
        {names.map((name) => {
          const series = all[name];
          return series === undefined ? null : (
            <section key={name} class={styles["chart"]} aria-label={name}>
              <h3>
                <bdi>{name}</bdi>
              </h3>
              <CurveChart
                title={name}
                series={[curveOf(name, series, axis, start, marks)]}
                xKind={axis}
                smoothing={smoothing}
                isLogY={isLogY}
                hasLegend={false}
                hasValues={false}
                range={range}
                onRange={setRange}
                cursorKey={`run ${axis}`}
              />
            </section>
          );
        })}
      </div>
      {charts.length > 0 && (
        <Section title="System">
          <div class={styles["charts"]}>
            {charts.map((chart) => (
              <section key={chart.title} class={styles["chart"]} aria-label={chart.title}>
                <h3>{chart.title}</h3>
                <CurveChart
                  title={chart.title}
                  series={chart.series}
                  xKind={timeAxis}
                  {...(chart.unit === "bytes" && { formatY: formatBytes })}
                  {...(axis === "step" ? {} : { range, onRange: setRange })}
                  hasLegend={chart.series.length > 1}
                  hasValues={false}
                  cursorKey={`run ${timeAxis}`}
                />
              </section>
            ))}
          </div>
        </Section>
      )}
    </>
  );
}
