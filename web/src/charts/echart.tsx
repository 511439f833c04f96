/**
 * A chart of ECharts. Load the modules that use this late (`lazy(() => import(…))`): the library is large. A chart
 * names the parts of ECharts that it draws with, so that a chunk has only these.
 */
import { type EChartsCoreOption, type EChartsType, init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { COLOURS, type ShownTheme } from "./palette";
import { shownTheme } from "./shown_theme";
import styles from "./echart.module.css";

export type ChartParts = Exclude<Parameters<typeof use>[0], (...of: never[]) => unknown>;
export type ChartOption = EChartsCoreOption;
export type ChartEvents = Readonly<Record<string, (event: Record<string, unknown>) => void>>;

use(CanvasRenderer); // the policy of the page refuses the style attributes of the SVG renderer

/** Returns the value of a custom property of tokens.css in the shown theme. */
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function makeTheme(theme: ShownTheme): Record<string, unknown> {
  const axis = {
    axisLine: { lineStyle: { color: token("--line-strong") } },
    axisTick: { lineStyle: { color: token("--line-strong") } },
    axisLabel: { color: token("--text-2") },
    splitLine: { lineStyle: { color: token("--line") } },
    nameTextStyle: { color: token("--text-2") },
  };
  return {
    color: COLOURS[theme],
    backgroundColor: "transparent",
    textStyle: { fontFamily: token("--font"), fontSize: 12, color: token("--text") },
    categoryAxis: axis,
    valueAxis: axis,
    logAxis: axis,
    timeAxis: axis,
    legend: { textStyle: { color: token("--text-2") } },
  };
}

/** Returns the option with a tooltip that needs no markup: that of ECharts has style attributes. */
function withSafeTooltip(option: ChartOption): ChartOption {
  const { tooltip } = option;
  if (tooltip === undefined) {
    return option;
  }
  const look = {
    confine: true,
    backgroundColor: token("--surface"),
    borderColor: token("--line-strong"),
    textStyle: { color: token("--text"), fontSize: 12 },
  };
  return { ...option, tooltip: { ...look, ...(tooltip as object), renderMode: "richText" } };
}

interface Props {
  /** What the chart shows, for screen readers. */
  label: string;
  height: number;
  parts: ChartParts;
  /** In the words of ECharts. `make` is called again after a change of the theme; `key`: whenever it changes. */
  option: (theme: ShownTheme) => ChartOption;
  /** Kinds of components that the option replaces as a whole; others are merged. Left out: all is replaced. */
  replace?: readonly string[];
  events?: ChartEvents;
  /** The chart itself, once it is there, for actions such as `highlight`. */
  chart?: RefObject<EChartsType>;
  /** Called after each `option` that was drawn. */
  onDrawn?: (chart: EChartsType) => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  /** What lies over the chart. */
  children?: ComponentChildren;
}

/** A chart as wide as its place. `option` must be the same function while it draws the same. */
export function EChart({
  label,
  height,
  parts,
  option,
  replace,
  events,
  chart: given,
  onDrawn,
  onKeyDown,
  children,
}: Props) {
  const host = useRef<HTMLDivElement>(null);
  const chart = useRef<EChartsType | null>(null);
  const [isReady, setReady] = useState(false);
  const latest = useRef(events);
  latest.current = events;
  const theme = shownTheme.value;

  useLayoutEffect(() => {
    const element = host.current;
    if (!element) {
      return;
    }
    use(parts);
    const resize = () => {
      const { clientWidth, clientHeight } = element;
      if (clientWidth === 0 || clientHeight === 0) {
        return; // of a hidden page: ECharts would warn
      }
      if (chart.current === null) {
        chart.current = init(element, makeTheme(shownTheme.peek()));
        if (given) {
          given.current = chart.current;
        }
        setReady(true);
      } else {
        chart.current.resize();
      }
    };
    const observer = new ResizeObserver(resize);
    observer.observe(element);
    resize();
    return () => {
      observer.disconnect();
      chart.current?.dispose();
      chart.current = null;
      if (given) {
        given.current = null;
      }
      setReady(false);
    };
  }, [parts, given]);

  const names = Object.keys(events ?? {}).join(" ");
  useEffect(() => {
    const made = chart.current;
    if (!isReady || made === null || names === "") {
      return;
    }
    const handlers = names
      .split(" ")
      .map(
        (name) =>
          [name, (event: unknown) => latest.current?.[name]?.(event as Record<string, unknown>)] as const,
      );
    handlers.forEach(([name, handler]) => made.on(name, handler));
    return () => {
      if (!made.isDisposed()) {
        handlers.forEach(([name, handler]) => made.off(name, handler));
      }
    };
  }, [isReady, names]);

  const drawnTheme = useRef(theme);
  useLayoutEffect(() => {
    const made = chart.current;
    if (!isReady || made === null) {
      return;
    }
    if (drawnTheme.current !== theme) {
      drawnTheme.current = theme;
      made.setTheme(makeTheme(theme), { silent: true });
    }
    made.setOption(
      { animation: false, ...withSafeTooltip(option(theme)) },
      replace ? { replaceMerge: [...replace] } : { notMerge: true },
    );
    onDrawn?.(made);
  }, [isReady, option, theme]);

  return (
    <div
      class={styles["chart"]}
      style={{ height: `${height}px` }}
      role={onKeyDown ? "group" : "img"}
      aria-roledescription="chart"
      aria-label={label}
      tabIndex={onKeyDown ? 0 : undefined}
      onKeyDown={onKeyDown}
    >
      <div ref={host} class={styles["canvas"]} aria-hidden="true" />
      {children}
    </div>
  );
}
