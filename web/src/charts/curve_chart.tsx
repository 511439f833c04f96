import { signal, type Signal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatCount, formatNumber } from "@/text/format";
import { formatTick, formatX, type XKind } from "./axis_format";
import styles from "./curve_chart.module.css";
import { CurveLegend } from "./curve_legend";
import { CurvePlot, type PlotCursor } from "./curve_plot";
import { type CurveSeries, MANY_CURVES, type Range, withoutManyBands } from "./curve_series";
import { CurveTooltip } from "./curve_tooltip";
import { CurveValues } from "./curve_values";
import { joinCursors, moveCursors } from "./cursor_link";
import { shownTheme } from "./shown_theme";
import { smoothAll } from "./smoothing";

interface Props {
  /** What the curves show, for screen readers. */
  title: string;
  series: readonly CurveSeries[];
  xKind?: XKind;
  xLabel?: string;
  isLogX?: boolean;
  isLogY?: boolean;
  /** The weight of earlier values, from 0 to below 1. */
  smoothing?: number;
  height?: number;
  formatY?: (value: number) => string;
  /** The shown range of x. Left out: the chart keeps its own. Given: set it in `onRange`. */
  range?: Range | null;
  /** Called after a zoom, so that the page can fetch the exact points; null after a reset. */
  onRange?: (range: Range | null) => void;
  /** Charts with the same key and the same x axis move their cursors together. */
  cursorKey?: string;
  /** The key of the curve that is drawn over the others, shared by charts of a page. */
  highlight?: Signal<string | null>;
  hidden?: ReadonlySet<string>;
  onHidden?: (hidden: ReadonlySet<string>) => void;
  hasLegend?: boolean;
  hasValues?: boolean;
}

const NONE: ReadonlySet<string> = new Set();
const KEYS = {
  ArrowRight: "next",
  ArrowLeft: "previous",
  Home: "first",
  End: "last",
} as const;

/**
 * Curves over a common x axis. Dragging zooms, a double click shows all again. The arrow keys move the cursor,
 * `+` and `-` zoom, `0` shows all.
 */
export function CurveChart({
  title,
  series,
  xKind = "step",
  xLabel = xKind,
  isLogX = false,
  isLogY = false,
  smoothing = 0,
  height = 220,
  formatY = formatTick,
  hasLegend = true,
  hasValues = true,
  ...props
}: Props) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvePlot | null>(null);
  const [ownRange, setOwnRange] = useState<Range | null>(null);
  const [ownHidden, setOwnHidden] = useState<ReadonlySet<string>>(NONE);
  const [ownHighlight] = useState(() => signal<string | null>(null));
  const [cursor, setCursor] = useState<PlotCursor | null>(null);
  const [isByKey, setByKey] = useState(false);
  const [width, setWidth] = useState(0);
  const range = props.range === undefined ? ownRange : props.range;
  const hidden = props.hidden ?? ownHidden;
  const highlight = props.highlight ?? ownHighlight;
  const { cursorKey } = props;

  const shown = useMemo(
    () => withoutManyBands(hidden.size > 0 ? series.filter((each) => !hidden.has(each.key)) : series),
    [series, hidden],
  );
  const curves = useMemo(() => smoothAll(shown, smoothing), [shown, smoothing]);
  const theme = shownTheme.value;

  const zoom = (to: Range | null) => {
    setOwnRange(to);
    props.onRange?.(to);
  };
  const linkCursor = useRef((x: number | null) => plot.current?.linkCursor(x)).current;
  const events = useRef({ zoom, highlight, cursorKey });
  events.current = { zoom, highlight, cursorKey };

  useLayoutEffect(() => {
    const element = host.current;
    if (!element) {
      return;
    }
    const measure = () => setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const isReady = width > 0;
  useLayoutEffect(() => {
    const element = host.current;
    if (!element || !isReady) {
      return;
    }
    const made = new CurvePlot(
      element,
      { width: element.clientWidth, height },
      { xKind, isLogX, isLogY, formatY },
      {
        onZoom: (to) => events.current.zoom(to),
        onCursor: (to) => {
          setCursor(to);
          events.current.highlight.value = to?.nearest?.series.key ?? null;
          if (events.current.cursorKey !== undefined) {
            moveCursors(events.current.cursorKey, to?.x ?? null, linkCursor);
          }
        },
      },
    );
    plot.current = made;
    return () => {
      plot.current = null;
      made.destroy();
    };
  }, [isReady, height, xKind, isLogX, isLogY, formatY]);

  useLayoutEffect(() => {
    const hasRaw = smoothing > 0 && shown.length <= MANY_CURVES;
    plot.current?.update({ curves, raw: hasRaw ? shown : [], range, theme });
  }, [isReady, height, xKind, isLogX, isLogY, formatY, curves, shown, smoothing, range, theme]);
  useLayoutEffect(() => plot.current?.resize(width, height), [width, height]);
  useEffect(
    () => (cursorKey === undefined ? undefined : joinCursors(cursorKey, linkCursor)),
    [cursorKey, linkCursor],
  );
  useSignalEffect(() => plot.current?.highlight(highlight.value));

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== event.currentTarget) {
      return;
    }
    const actions: Record<string, () => void> = {
      "+": () => plot.current?.zoomBy(0.5),
      "-": () => plot.current?.zoomBy(2),
      "0": () => zoom(null),
      Escape: () => plot.current?.hideCursor(),
    };
    const move = KEYS[event.key as keyof typeof KEYS] as (typeof KEYS)[keyof typeof KEYS] | undefined;
    const action = move ? () => plot.current?.stepCursor(move) : actions[event.key];
    if (action) {
      event.preventDefault();
      setByKey(true);
      action();
    }
  };

  const isEmpty = shown.every((each) => each.x.length === 0);
  const points = cursor?.points ?? [];
  return (
    <div class={styles["chart"]}>
      <div
        ref={host}
        class={styles["plot"]}
        style={{ height: `${height}px` }}
        tabIndex={0}
        role="group"
        aria-roledescription="chart"
        aria-label={`${title} by ${xLabel}, ${formatCount(shown.length, "curve")}`}
        onKeyDown={onKeyDown}
        onBlur={() => plot.current?.hideCursor()}
        onMouseMove={() => setByKey(false)}
      >
        {isEmpty && <p class={styles["empty"]}>No points</p>}
        {cursor && points.length > 0 && (
          <CurveTooltip cursor={cursor} xKind={xKind} xLabel={xLabel} width={width} />
        )}
      </div>
      <p class={styles["spoken"]} aria-live="polite">
        {isByKey &&
          cursor &&
          `${xLabel} ${formatX(xKind, cursor.x)}: ${points
            .slice(0, 5)
            .map((point) => `${point.series.label} ${formatNumber(point.y)}`)
            .join(", ")}`}
      </p>
      {hasLegend && (
        <CurveLegend
          series={series}
          hidden={hidden}
          highlight={highlight}
          onHidden={(to) => {
            setOwnHidden(to);
            props.onHidden?.(to);
          }}
        />
      )}
      {hasValues && !isEmpty && <CurveValues series={shown} xKind={xKind} xLabel={xLabel} />}
    </div>
  );
}
