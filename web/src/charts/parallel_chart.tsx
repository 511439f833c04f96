/** Parallel coordinates: a line for each run, through its values on several axes. A late chunk, with ECharts. */
import { type Signal, useSignalEffect } from "@preact/signals";
import { ParallelChart as ParallelSeries } from "echarts/charts";
import { ParallelComponent } from "echarts/components";
import type { EChartsType } from "echarts/core";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { EChart, token } from "./echart";
import { curveColour, curveDash, type ShownTheme } from "./palette";
import {
  axisText,
  type Brush,
  type Brushes,
  brushPlaces,
  moveTo,
  type ParallelAxis,
  type PlacedAxis,
  placeAxis,
} from "./parallel_axes";
import { ParallelAxisHead } from "./parallel_axis_head";
import { ParallelAxisLine } from "./parallel_axis_line";
import styles from "./parallel_chart.module.css";
import { shownTheme } from "./shown_theme";
import { valueColour, valueGradient } from "./value_colour";

const PARTS = [ParallelSeries, ParallelComponent];
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 64, 12, 18];
const MIN_SPACE = 104; // between axes; a narrow page scrolls
const QUIET_MS = 150; // after a brush moved, before the page hears of it
const NOTHING = [-2, -1]; // places of a selection beside the axis
const CHIPS = 20; // axes that can show the values of a line

interface Props {
  /** What the lines are, for screen readers. */
  title: string;
  axes: readonly ParallelAxis[];
  /** Of the lines: their keys, names and numbers of colours. */
  keys: readonly string[];
  labels: readonly string[];
  colours?: readonly number[];
  /** The values that give the lines their colours, in place of `colours`. */
  colourBy?: ParallelAxis | null;
  hidden?: ReadonlySet<string>;
  highlight: Signal<string | null>;
  brushes: Brushes;
  onBrushes: (brushes: Brushes) => void;
  /** Keys of axes with a logarithmic scale, where all values are above 0. */
  logAxes: ReadonlySet<string>;
  onLogAxes: (keys: ReadonlySet<string>) => void;
  /** Called with the keys of the axes in their new order, or without one of them. */
  onAxes: (keys: readonly string[]) => void;
  onColourBy: (key: string | null) => void;
  /** Called with the key of a line that was clicked. */
  onOpen?: (key: string) => void;
  height?: number;
}

function withBrush(brushes: Brushes, key: string, brush: Brush | null): Brushes {
  const changed = new Map(brushes);
  changed.delete(key);
  return brush === null ? changed : changed.set(key, brush);
}

const toText = (brushes: Brushes): string => JSON.stringify([...brushes]);

/**
 * Drag along an axis to select lines, drag the name of an axis to move it, choose the name for its scale, its limits
 * and its colours. Up and down go through the lines, Enter opens one.
 */
export function ParallelChart({
  title,
  keys,
  labels,
  colours,
  colourBy = null,
  hidden,
  highlight,
  height = 420,
  ...props
}: Props) {
  const chart = useRef<EChartsType>(null);
  const place = useRef<HTMLDivElement>(null);
  const drawn = useRef(new Map<string, string>());
  const [width, setWidth] = useState(0);
  const [brushes, setBrushes] = useState(props.brushes);
  const [current, setCurrent] = useState<string | null>(null);
  const latest = useRef({ props, brushes });
  latest.current = { props, brushes };

  // live runs are read again and again: the same values are the same axes, and a brush stays
  const content = JSON.stringify([props.axes, keys, [...props.logAxes], [...(hidden ?? [])], colourBy]);
  const axes = useMemo(
    () => props.axes.map((axis) => placeAxis(axis, props.logAxes.has(axis.key))),
    [content],
  );
  const lines = useMemo(() => keys.flatMap((key, line) => (hidden?.has(key) ? [] : [line])), [content]);
  const colouring = useMemo(
    () => (colourBy ? placeAxis(colourBy, props.logAxes.has(colourBy.key)) : null),
    [content],
  );
  const option = useCallback(
    (theme: ShownTheme) =>
      makeOption(axes, lines, (line) => colourOf(line, colours?.[line] ?? line, colouring, theme)),
    [axes, lines, colouring, colours?.join()],
  );

  useLayoutEffect(() => {
    const element = place.current;
    if (!element) {
      return;
    }
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  const drawBrushes = useCallback(
    (made: EChartsType) => {
      for (const [index, axis] of axes.entries()) {
        const brush = latest.current.brushes.get(axis.key);
        const places = brush && brushPlaces(axis, brush);
        const intervals = JSON.stringify(places ? [places] : brush ? [NOTHING] : []);
        if ((drawn.current.get(axis.key) ?? "[]") !== intervals) {
          drawn.current.set(axis.key, intervals);
          made.dispatchAction({
            type: "axisAreaSelect",
            parallelAxisIndex: index,
            intervals: JSON.parse(intervals) as unknown,
          });
        }
      }
    },
    [axes],
  );
  const frame = useRef(0);
  const timer = useRef(0);
  const show = (to: Brushes) => {
    setBrushes(to);
    latest.current.brushes = to;
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => chart.current && drawBrushes(chart.current));
  };
  const change = (key: string, brush: Brush | null, isDragged: boolean) => {
    const to = withBrush(latest.current.brushes, key, brush);
    show(to);
    window.clearTimeout(timer.current);
    if (isDragged) {
      timer.current = window.setTimeout(() => latest.current.props.onBrushes(to), QUIET_MS);
    } else {
      props.onBrushes(to);
    }
  };
  useEffect(
    () => () => {
      window.clearTimeout(timer.current);
      cancelAnimationFrame(frame.current);
    },
    [],
  );
  const given = toText(props.brushes);
  useEffect(() => {
    if (toText(latest.current.brushes) !== given) {
      show(props.brushes);
    }
  }, [given]);

  useSignalEffect(() => {
    const key = highlight.value;
    setCurrent(key);
    const made = chart.current;
    if (made) {
      made.dispatchAction({ type: "downplay", seriesIndex: 0 });
      const dataIndex = key === null ? -1 : lines.indexOf(keys.indexOf(key));
      if (dataIndex >= 0) {
        made.dispatchAction({ type: "highlight", seriesIndex: 0, dataIndex });
      }
    }
  });

  const keyOf = (event: Record<string, unknown>): string | null =>
    keys[lines[event["dataIndex"] as number] ?? -1] ?? null;
  const events = {
    mouseover: (event: Record<string, unknown>) => (highlight.value = keyOf(event)),
    mouseout: () => (highlight.value = null),
    click: (event: Record<string, unknown>) => {
      const key = keyOf(event);
      if (key !== null) {
        props.onOpen?.(key);
      }
    },
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const shown = lines.map((line) => keys[line] ?? "");
    const at = shown.indexOf(highlight.value ?? "");
    const actions: Record<string, () => void> = {
      ArrowDown: () => (highlight.value = shown[Math.min(shown.length - 1, at + 1)] ?? null),
      ArrowUp: () => (highlight.value = shown[Math.max(0, at < 0 ? shown.length - 1 : at - 1)] ?? null),
      Enter: () => highlight.value !== null && props.onOpen?.(highlight.value),
      Escape: () => (highlight.value = null),
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  };

  const needed = LEFT + RIGHT + MIN_SPACE * Math.max(1, axes.length - 1);
  const inner = Math.max(width, needed);
  const space = (inner - LEFT - RIGHT) / Math.max(1, axes.length - 1);
  const toX = (index: number) => (axes.length === 1 ? inner / 2 : LEFT + index * space);
  const line = current === null ? -1 : keys.indexOf(current);
  const order = axes.map((axis) => axis.key);
  return (
    <div ref={place} class={styles["scroll"]}>
      {width > 0 && (
        <div class={styles["inner"]} style={{ width: `${inner}px` }}>
          <div class={styles["heads"]} role="list" aria-label="axes">
            {axes.map((axis, index) => (
              <ParallelAxisHead
                key={axis.key}
                axis={axis}
                x={toX(index)}
                width={Math.min(space - 8, 200)}
                brush={brushes.get(axis.key) ?? null}
                isColour={colourBy?.key === axis.key}
                onBrush={(brush) => change(axis.key, brush, false)}
                onLog={(isLog) => {
                  const changed = new Set(props.logAxes);
                  changed[isLog ? "add" : "delete"](axis.key);
                  props.onLogAxes(changed);
                }}
                onColour={(isColour) => props.onColourBy(isColour ? axis.key : null)}
                onStep={(by) => props.onAxes(moveTo(order, axis.key, index + by))}
                onDrop={(x) =>
                  props.onAxes(moveTo(order, axis.key, Math.round((x - LEFT) / Math.max(1, space))))
                }
                onRemove={
                  axes.length > 2 ? () => props.onAxes(order.filter((key) => key !== axis.key)) : null
                }
              />
            ))}
          </div>
          <EChart
            label={`${lines.length} ${title} by ${axes.map((axis) => axis.name).join(", ")}`}
            height={height}
            parts={PARTS}
            option={option}
            events={events}
            chart={chart}
            onDrawn={(made) => {
              drawn.current.clear();
              drawBrushes(made);
            }}
            onKeyDown={onKeyDown}
          >
            <svg class={styles["axes"]} width={inner} height={height} aria-hidden="true">
              {axes.map((axis, index) => (
                <ParallelAxisLine
                  key={axis.key}
                  axis={axis}
                  x={toX(index)}
                  top={TOP}
                  length={height - TOP - BOTTOM}
                  brush={brushes.get(axis.key) ?? null}
                  onBrush={(brush) => change(axis.key, brush, true)}
                />
              ))}
            </svg>
            {line >= 0 && (
              <div class={styles["chips"]} aria-hidden="true">
                {axes.slice(0, CHIPS).map((axis, index) => {
                  const at = axis.places[line] ?? null;
                  return (
                    at !== null && (
                      <span
                        key={axis.key}
                        style={{
                          left: `${toX(index)}px`,
                          top: `${TOP + (1 - at) * (height - TOP - BOTTOM)}px`,
                        }}
                      >
                        {axisText(axis.values[line] ?? null)}
                      </span>
                    )
                  );
                })}
              </div>
            )}
          </EChart>
        </div>
      )}
      <div class={styles["foot"]}>
        <p aria-live="polite">
          {line < 0
            ? `Drag along an axis to select ${title}, drag its name to move it.`
            : `${labels[line] ?? ""}: ${axes.map((axis) => `${axis.name} ${axisText(axis.values[line] ?? null)}`).join(", ")}`}
        </p>
        {colouring && colouring.kind !== "category" && (
          <p class={styles["scale"]}>
            <span>{colouring.name}</span>
            <span>{axisText(colouring.low)}</span>
            <span class={styles["gradient"]} style={{ background: valueGradient(shownTheme.value) }} />
            <span>{axisText(colouring.high)}</span>
          </p>
        )}
        {colouring?.kind === "category" && (
          <ul class={styles["scale"]}>
            {colouring.texts.slice(0, CHIPS).map((text, index) => (
              <li key={text}>
                <span class={styles["dot"]} style={{ background: curveColour(index, shownTheme.value) }} />
                {text}
              </li>
            ))}
          </ul>
        )}
      </div>
    </div>
  );
}

interface Look {
  color: string;
  type: number[] | "solid";
}

function colourOf(line: number, number: number, by: PlacedAxis | null, theme: ShownTheme): Look {
  if (by === null) {
    const dash = curveDash(number);
    return { color: curveColour(number, theme), type: dash.length > 0 ? [...dash] : "solid" };
  }
  const at = by.places[line] ?? null;
  if (at === null) {
    return { color: token("--text-3"), type: [2, 4] };
  }
  const color =
    by.kind === "category"
      ? curveColour(by.texts.indexOf(axisText(by.values[line] ?? null)), theme)
      : valueColour(at, theme);
  return { color, type: "solid" };
}

function makeOption(axes: readonly PlacedAxis[], lines: readonly number[], look: (line: number) => Look) {
  const isMany = lines.length > 60;
  return {
    parallel: { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM },
    // the axes themselves are elements of the page: ECharts draws selections in a fixed colour
    parallelAxis: axes.map((axis, dim) => ({
      id: axis.key,
      dim,
      type: "value",
      min: 0,
      max: 1,
      show: false,
    })),
    series: {
      type: "parallel",
      progressive: 0, // lines that are drawn in steps cannot be pointed at
      inactiveOpacity: 0.06,
      activeOpacity: isMany ? 0.75 : 1,
      lineStyle: { width: isMany ? 1.2 : 2, opacity: isMany ? 0.6 : 0.9 },
      emphasis: { focus: "self", lineStyle: { width: 4, opacity: 1 } },
      blur: { lineStyle: { opacity: 0.15 } },
      data: lines.map((line) => ({
        value: axes.map((axis) => axis.places[line] ?? Number.NaN),
        lineStyle: look(line),
      })),
    },
  };
}
