import { useMemo, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, isFinal, type Checkpoint, type Command, type Run } from "@/api/runs";
import { CurveChart } from "@/charts/curve_chart";
import type { Range } from "@/charts/curve_series";
import { PairForm } from "@/charts/pair_form";
import { moves, Panel } from "@/charts/panel";
import { drop, type MetricPair, move, pairName, toPairs } from "@/charts/panels";
import { seriesKey, useSeries } from "@/charts/series_data";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { SavedViews } from "@/parts/saved_views";
import { compilePattern } from "@/text/pattern";
import { formatBytes } from "@/text/format";
import { curveOf, marksOf, systemCharts, type XAxis } from "./curve_data";
import { applyLayout, layoutOf } from "./curve_layout";
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
  const [range, setRange] = useState<Range | null>(null);
  const axis = (Object.keys(AXES) as XAxis[]).find((each) => each === search.get("x")) ?? "step";
  const smoothing = Math.min(0.99, Math.max(0, Number(search.get("smoothing") ?? 0) || 0));
  const isLogY = search.get("log") === "y";
  const filter = search.get("metrics") ?? "";
  const pins = [...new Set(search.getAll("pin"))];
  const pairs = toPairs(search.getAll("panel"));
  const set = (name: string, ...values: readonly string[]) => {
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        next.delete(name);
        values.filter((value) => value !== "").forEach((value) => next.append(name, value));
        return next;
      },
      { replace: true },
    );
  };
  const arrange = (to: readonly string[]) => set("panel", ...to);
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
  const matches = compilePattern(filter);
  const known = Object.keys(all);
  const names = [
    ...pins.filter((name) => name in all),
    ...known.filter((name) => !pins.includes(name)),
  ].filter(matches ?? (() => true));
  const pairNames = pairs.map(pairName);
  const timeAxis = axis === "time" ? "time" : "elapsed";
  return (
    <>
      <SavedViews
        page="run"
        usual="All metrics"
        search={layoutOf(search)}
        normalise={(layout) => layoutOf(new URLSearchParams(layout))}
        onChange={(layout) => {
          setRange(null);
          setSearch((old) => applyLayout(old, layout), { replace: true });
        }}
      />
      <div class={styles["tools"]}>
        <input
          type="search"
          placeholder="regular expression"
          aria-label="filter metrics"
          value={filter}
          aria-invalid={matches === null}
          onInput={(event) => set("metrics", event.currentTarget.value)}
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
        <Empty
          title={isFinal(run) ? "No metrics" : "No metrics yet"}
          command="hop.log(loss=loss, step=step)"
        />
      )}
      {matches === null && <p role="alert">{filter} is not a regular expression</p>}
      <div class={styles["charts"]}>
        {pairs.map((pair, index) => (
          <Panel
            key={pairNames[index]}
            name={pairName(pair)}
            kind="pair"
            onMove={moves(pairNames, pairName(pair), (by) => arrange(move(pairNames, pairName(pair), by)))}
            onDrop={(other) => arrange(drop(pairNames, other, pairName(pair)))}
            onRemove={() => arrange(pairNames.filter((name) => name !== pairName(pair)))}
          >
            <PairChart run={run} pair={pair} smoothing={smoothing} isLogY={isLogY} />
          </Panel>
        ))}
        {names.map((name) => {
          const series = all[name];
          return series === undefined ? null : (
            <Panel
              key={name}
              name={name}
              kind="metric"
              isPinned={pins.includes(name)}
              onPin={() =>
                set("pin", ...(pins.includes(name) ? pins.filter((pin) => pin !== name) : [...pins, name]))
              }
              onMove={
                pins.includes(name) ? moves(pins, name, (by) => set("pin", ...move(pins, name, by))) : null
              }
              onDrop={(other) => set("pin", ...drop(pins, other, name))}
            >
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
            </Panel>
          );
        })}
      </div>
      {known.length > 1 && (
        <PairForm
          metrics={known.toSorted()}
          onAdd={(pair) => arrange([...pairNames.filter((name) => name !== pairName(pair)), pairName(pair)])}
        />
      )}
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

/** A metric of the run over another, with a zoom of its own. */
function PairChart({
  run,
  pair,
  smoothing,
  isLogY,
}: {
  run: Run;
  pair: MetricPair;
  smoothing: number;
  isLogY: boolean;
}) {
  const [range, setRange] = useState<Range | null>(null);
  const found = useSeries({
    runs: [run.id],
    names: [pair.y],
    x: `metrics.${pair.x}`,
    range,
    isLive: !isFinal(run),
  });
  const series = found.series.get(seriesKey(run.id, pair.y));
  const curves = useMemo(
    () => (series ? [{ ...series, key: pair.y, label: pair.y, colour: 0 }] : []),
    [series, pair.y],
  );
  if (found.error !== null && curves.length === 0) {
    return <ErrorNotice error={found.error} />;
  }
  return (
    <CurveChart
      title={pair.y}
      series={curves}
      xKind="metric"
      xLabel={pair.x}
      smoothing={smoothing}
      isLogY={isLogY}
      hasLegend={false}
      hasValues={false}
      range={range}
      onRange={setRange}
    />
  );
}
