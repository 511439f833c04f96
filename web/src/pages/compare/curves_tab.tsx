import { useEffect, useMemo, useState } from "preact/hooks";
import type { XKind } from "@/charts/axis_format";
import { CurveChart } from "@/charts/curve_chart";
import { CurveLegend } from "@/charts/curve_legend";
import type { Range } from "@/charts/curve_series";
import type { Spread } from "@/charts/grouping";
import { PairForm } from "@/charts/pair_form";
import { moves, Panel } from "@/charts/panel";
import { drop, type MetricPair, move, orderPanels, pairName, toPairs } from "@/charts/panels";
import { type SeriesByRun, useSeries } from "@/charts/series_data";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice } from "@/parts/notices";
import { SavedViews } from "@/parts/saved_views";
import { compilePattern } from "@/text/pattern";
import { groupRuns } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { readView, withLayout, writeLayout } from "./compare_view";
import { comparedCurves, countMetrics, type CurveGroup } from "./compared_curves";

const PANELS = 24; // before `Show more`
const METRIC = "metrics.";
const REST_MS = 150; // from the last move of a slider to the new address
const X_LABELS: Record<string, string> = { step: "step", time: "time", elapsed: "after" };

interface PanelSettings {
  parts: CompareParts;
  ids: readonly string[];
  groups: readonly CurveGroup[];
  smoothing: number;
}

/**
 * Returns the weight of smoothing, and how to change it. A slider that moves draws the curves at once, and changes the
 * address when it rests: a new address draws the whole page, and browsers refuse many of them in a second.
 */
function useSmoothing({ view, change }: CompareParts): [number, (weight: number) => void] {
  const [moving, setMoving] = useState<number | null>(null);
  useEffect(() => {
    if (moving === null) {
      return;
    }
    const timer = window.setTimeout(() => {
      change({ smoothing: moving });
      setMoving(null);
    }, REST_MS);
    return () => window.clearTimeout(timer);
  }, [moving]);
  return [moving ?? view.smoothing, setMoving];
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
  const [smoothing, setSmoothing] = useSmoothing(parts);
  const grouped = useMemo(() => groupRuns(columns, view.group), [columns, view.group]);
  const order = runs.map((run) => run.id).join(" ");
  const ids = useMemo(() => runs.map((run) => run.id), [order]); // the same while only values change
  const groups = useMemo<CurveGroup[]>(
    () =>
      grouped
        ? [...grouped].map(([label, members]) => ({
            key: label,
            label: `${label} (${members.length})`,
            members,
          }))
        : ids.map((id, place) => ({ key: id, label: labels[place] ?? id, members: [place] })),
    [grouped, ids, labels],
  );
  const found = useSeries({ runs: ids, names: names.toSorted(), x: view.x, range, isLive });
  const panels = { parts, ids, groups, smoothing };
  const choices = useMemo(
    () => columns.filter((column) => new Set(column.values).size < ids.length || ids.length < 3),
    [columns, ids],
  );

  return (
    <>
      <SavedViews
        page="compare"
        usual="All metrics"
        search={writeLayout(view)}
        normalise={(search) => writeLayout(readView(new URLSearchParams(search)))}
        onChange={(search) => {
          setRange(null);
          change(withLayout(view, search));
        }}
      />
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
            value={smoothing}
            onInput={(event) => setSmoothing(Number(event.currentTarget.value))}
          />
          <output>{smoothing.toFixed(2)}</output>
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
          <MetricPanel
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
function MetricPanel({
  name,
  series,
  parts,
  ids,
  groups,
  smoothing,
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
  const { view, change } = parts;
  const { pins } = view;
  const isPinned = pins.includes(name);
  const curves = useMemo(
    () => comparedCurves(name, series, ids, groups, view.spread),
    [name, series, ids, groups, view.spread],
  );
  const xKind: XKind = view.x.startsWith(METRIC) ? "metric" : (view.x as XKind);
  return (
    <Panel
      name={name}
      kind="metric"
      isBusy={isLoading}
      isPinned={isPinned}
      onPin={() => change({ pins: isPinned ? pins.filter((pin) => pin !== name) : [...pins, name] })}
      onMove={isPinned ? moves(pins, name, (by) => change({ pins: move(pins, name, by) })) : null}
      onDrop={(other) => change({ pins: drop(pins, other, name) })}
    >
      <CurveChart
        title={name}
        series={curves}
        xKind={xKind}
        xLabel={X_LABELS[view.x] ?? view.x.slice(METRIC.length)}
        smoothing={smoothing}
        isLogX={view.isLogX}
        isLogY={view.isLogY}
        range={range}
        onRange={onRange}
        cursorKey="compare"
        highlight={parts.highlight}
        hidden={parts.hidden}
        hasLegend={false}
      />
    </Panel>
  );
}

/** A metric over another metric, with a zoom of its own. */
function PairPanel({
  pair,
  isLive,
  parts,
  ids,
  groups,
  smoothing,
}: PanelSettings & { pair: MetricPair; isLive: boolean }) {
  const { view, change } = parts;
  const [range, setRange] = useState<Range | null>(null);
  const found = useSeries({ runs: ids, names: [pair.y], x: METRIC + pair.x, range, isLive });
  const curves = useMemo(
    () => comparedCurves(pair.y, found.series, ids, groups, view.spread),
    [pair.y, found.series, ids, groups, view.spread],
  );
  const title = pairName(pair);
  const names = view.pairs.map(pairName);
  const arrange = (to: readonly string[]) => change({ pairs: toPairs(to) });
  return (
    <Panel
      name={title}
      kind="pair"
      onMove={moves(names, title, (by) => arrange(move(names, title, by)))}
      onDrop={(other) => arrange(drop(names, other, title))}
      onRemove={() => arrange(names.filter((name) => name !== title))}
    >
      {found.error !== null && curves.length === 0 ? (
        <ErrorNotice error={found.error} />
      ) : (
        <CurveChart
          title={pair.y}
          series={curves}
          xKind="metric"
          xLabel={pair.x}
          smoothing={smoothing}
          isLogY={view.isLogY}
          range={range}
          onRange={setRange}
          highlight={parts.highlight}
          hidden={parts.hidden}
          hasLegend={false}
        />
      )}
    </Panel>
  );
}
