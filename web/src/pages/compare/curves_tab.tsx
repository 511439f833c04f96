import { useMemo, useState } from "preact/hooks";
import type { XKind } from "@/charts/axis_format";
import { CurveChart } from "@/charts/curve_chart";
import { CurveLegend } from "@/charts/curve_legend";
import type { Range } from "@/charts/curve_series";
import type { Spread } from "@/charts/grouping";
import { type SeriesByRun, useSeries } from "@/charts/series_data";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice } from "@/parts/notices";
import { groupRuns } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { compilePattern, type MetricPair, move, orderPanels, pairName } from "./compare_view";
import { comparedCurves, countMetrics, type CurveGroup } from "./compared_curves";
import { PairForm } from "./pair_form";

const PANELS = 24; // before `Show more`
const METRIC = "metrics.";
const X_LABELS: Record<string, string> = { step: "step", time: "time", elapsed: "after" };

interface PanelSettings {
  parts: CompareParts;
  groups: readonly CurveGroup[];
}

/** The curves of all metrics of the runs, in a grid of panels. */
export function CurvesTab({ isLive, ...parts }: CompareParts & { isLive: boolean }) {
  const { runs, labels, columns, view, change } = parts;
  const [range, setRange] = useState<Range | null>(null);
  const [limit, setLimit] = useState(PANELS);
  const counts = useMemo(() => countMetrics(runs), [runs]);
  const metrics = useMemo(() => [...counts.keys()].sort(), [counts]);
  const matches = compilePattern(view.search);
  const ordered = orderPanels(counts, view.pins, matches ?? (() => true));
  const names = ordered.slice(0, limit);
  const grouped = useMemo(() => groupRuns(columns, view.group), [columns, view.group]);
  const groups = useMemo<CurveGroup[]>(
    () =>
      grouped
        ? [...grouped].map(([label, members]) => ({
            key: label,
            label: `${label} (${members.length})`,
            members,
          }))
        : runs.map((run, place) => ({ key: run.id, label: labels[place] ?? run.name, members: [place] })),
    [grouped, runs, labels],
  );
  const ids = useMemo(() => runs.map((run) => run.id), [runs]);
  const found = useSeries({ runs: ids, names: names.toSorted(), x: view.x, range, isLive });
  const panels = { parts, groups };
  const choices = columns.filter((column) => new Set(column.values).size < runs.length || runs.length < 3);

  return (
    <>
      <div class={styles["bar"]} role="group" aria-label="curves">
        <label>
          X axis
          <select
            value={view.x}
            onChange={(event) => {
              setRange(null);
              change({ x: event.currentTarget.value });
            }}
          >
            <option value="step">Step</option>
            <option value="time">Wall time</option>
            <option value="elapsed">Time since start</option>
            {metrics.map((name) => (
              <option key={name} value={METRIC + name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <label>
          Smoothing
          <input
            type="range"
            min="0"
            max="0.99"
            step="0.01"
            value={view.smoothing}
            onInput={(event) => change({ smoothing: Number(event.currentTarget.value) })}
          />
          <output>{view.smoothing.toFixed(2)}</output>
        </label>
        <label>
          <input
            type="checkbox"
            checked={view.isLogX}
            onChange={(event) => {
              setRange(null);
              change({ isLogX: event.currentTarget.checked });
            }}
          />
          Log x
        </label>
        <label>
          <input
            type="checkbox"
            checked={view.isLogY}
            onChange={(event) => change({ isLogY: event.currentTarget.checked })}
          />
          Log y
        </label>
        <label>
          Group by
          <select
            value={view.group}
            onChange={(event) => change({ group: event.currentTarget.value, hidden: [] })}
          >
            <option value="">each run</option>
            {choices
              .filter(
                (column) =>
                  column.section === "Params" || column.section === "Tags" || column.key === view.group,
              )
              .map((column) => (
                <option key={column.key} value={column.key}>
                  {column.key}
                </option>
              ))}
          </select>
        </label>
        {grouped && (
          <label>
            Band
            <select
              value={view.spread}
              onChange={(event) => change({ spread: event.currentTarget.value as Spread })}
            >
              <option value="range">lowest to highest</option>
              <option value="deviation">standard deviation</option>
            </select>
          </label>
        )}
        <label>
          Metrics
          <input
            type="search"
            placeholder="regular expression"
            value={view.search}
            aria-invalid={matches === null}
            onInput={(event) => change({ search: event.currentTarget.value })}
          />
        </label>
        {range && <Button onClick={() => setRange(null)}>Reset zoom</Button>}
      </div>
      {matches === null && <p role="alert">{view.search} is not a regular expression</p>}
      {found.error !== null && found.series.size === 0 && <ErrorNotice error={found.error} />}
      {grouped && (
        <CurveLegend
          series={groups.map((group, colour) => ({ ...group, colour }))}
          hidden={parts.hidden}
          onHidden={(to) => change({ hidden: [...to] })}
          highlight={parts.highlight}
        />
      )}
      {counts.size === 0 && (
        <Empty
          title="These runs have logged no metrics"
          command={"import hopyard as hop\nhop.log(loss=loss)"}
        />
      )}
      {counts.size > 0 && names.length === 0 && matches && <Empty title="No metric has such a name" />}
      <div class={styles["grid"]} aria-busy={found.isLoading}>
        {view.pairs.map((pair) => (
          <PairPanel key={pairName(pair)} pair={pair} isLive={isLive} {...panels} />
        ))}
        {names.map((name) => (
          <Panel
            key={name}
            name={name}
            series={found.series}
            range={range}
            onRange={setRange}
            isLoading={found.isLoading}
            {...panels}
          />
        ))}
      </div>
      <div class={styles["bar"]}>
        {ordered.length > limit && (
          <Button onClick={() => setLimit(limit + PANELS)}>Show more ({ordered.length - limit})</Button>
        )}
        <PairForm
          metrics={metrics}
          onAdd={(pair) =>
            change({ pairs: [...view.pairs.filter((each) => pairName(each) !== pairName(pair)), pair] })
          }
        />
      </div>
    </>
  );
}

/** A metric over the common x axis. */
function Panel({
  name,
  series,
  parts,
  groups,
  range,
  onRange,
  isLoading,
}: PanelSettings & {
  name: string;
  series: SeriesByRun;
  range: Range | null;
  onRange: (range: Range | null) => void;
  isLoading: boolean;
}) {
  const { view, change, runs } = parts;
  const { pins } = view;
  const isPinned = pins.includes(name);
  const curves = useMemo(
    () => comparedCurves(name, series, runs, groups, view.spread),
    [name, series, runs, groups, view.spread],
  );
  const xKind: XKind = view.x.startsWith(METRIC) ? "metric" : (view.x as XKind);
  return (
    <section class={styles["panel"]} aria-label={name} aria-busy={isLoading}>
      <header>
        <h2 title={name}>{name}</h2>
        {isPinned && (
          <>
            <Button
              kind="quiet"
              aria-label={`← ${name}`}
              title="to the front"
              disabled={pins[0] === name}
              onClick={() => change({ pins: move(pins, name, -1) })}
            >
              ←
            </Button>
            <Button
              kind="quiet"
              aria-label={`→ ${name}`}
              title="to the back"
              disabled={pins.at(-1) === name}
              onClick={() => change({ pins: move(pins, name, 1) })}
            >
              →
            </Button>
          </>
        )}
        <Button
          kind="quiet"
          aria-pressed={isPinned}
          aria-label={`${isPinned ? "Unpin" : "Pin"} ${name}`}
          onClick={() => change({ pins: isPinned ? pins.filter((pin) => pin !== name) : [...pins, name] })}
        >
          {isPinned ? "Unpin" : "Pin"}
        </Button>
      </header>
      <CurveChart
        title={name}
        series={curves}
        xKind={xKind}
        xLabel={X_LABELS[view.x] ?? view.x.slice(METRIC.length)}
        smoothing={view.smoothing}
        isLogX={view.isLogX}
        isLogY={view.isLogY}
        range={range}
        onRange={onRange}
        cursorKey="compare"
        highlight={parts.highlight}
        hidden={parts.hidden}
        hasLegend={false}
      />
    </section>
  );
}

/** A metric over another metric, with a zoom of its own. */
function PairPanel({ pair, isLive, parts, groups }: PanelSettings & { pair: MetricPair; isLive: boolean }) {
  const { view, change, runs } = parts;
  const [range, setRange] = useState<Range | null>(null);
  const ids = useMemo(() => runs.map((run) => run.id), [runs]);
  const found = useSeries({ runs: ids, names: [pair.y], x: METRIC + pair.x, range, isLive });
  const curves = useMemo(
    () => comparedCurves(pair.y, found.series, runs, groups, view.spread),
    [pair.y, found.series, runs, groups, view.spread],
  );
  const title = pairName(pair);
  return (
    <section class={styles["panel"]} aria-label={title}>
      <header>
        <h2 title={title}>{title}</h2>
        <Button
          kind="quiet"
          aria-label={`Remove ${title}`}
          onClick={() => change({ pairs: view.pairs.filter((each) => pairName(each) !== title) })}
        >
          Remove
        </Button>
      </header>
      {found.error !== null && curves.length === 0 ? (
        <ErrorNotice error={found.error} />
      ) : (
        <CurveChart
          title={pair.y}
          series={curves}
          xKind="metric"
          xLabel={pair.x}
          smoothing={view.smoothing}
          isLogY={view.isLogY}
          range={range}
          onRange={setRange}
          highlight={parts.highlight}
          hidden={parts.hidden}
          hasLegend={false}
        />
      )}
    </section>
  );
}
