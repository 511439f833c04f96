/** Bars over time in rows, painted on a canvas: tens of thousands of bars stay fluid. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { formatDuration } from "@/text/format";
import { formatSeconds, roundTicks } from "./axis_format";
import styles from "./gantt_chart.module.css";
import {
  barAt,
  firstBar,
  type GanttBar,
  type GanttRow,
  moveSpan,
  type Span,
  spanOf,
  zoomSpan,
} from "./gantt_rows";
import { curveColour, type ShownTheme } from "./palette";
import { shownTheme } from "./shown_theme";

const [ROW, BAR, LIGHT, AXIS] = [22, 18, 8, 22];
const GOLDEN_ANGLE = 137.508;
const FEW_COLOURS = 10;
const MIN_TEXT = 22; // pixels of a bar that has room for its label
const MIN_DRAG = 4;
const MAX_NAMES = 160;

/** Returns the colour of a number; beyond the palette, hues that are far from those before. */
export function barColour(number: number, theme: ShownTheme): string {
  return number < FEW_COLOURS
    ? curveColour(number, theme)
    : `hsl(${(number * GOLDEN_ANGLE) % 360} 55% ${theme === "dark" ? 62 : 48}%)`;
}

interface Props {
  /** What the bars are, for screen readers. */
  title: string;
  rows: readonly GanttRow[];
  /** Times without anything that could work, such as between two attempts. */
  breaks?: readonly Span[];
  /** Lines between consecutive bars of the key that stands out. */
  hasPath?: boolean;
  picked: string | null;
  onPick: (key: string | null) => void;
}

interface Hover {
  bar: GanttBar;
  x: number;
  y: number;
}

/** Dragging zooms, a double click shows all. `+` and `-` zoom, the arrow keys move, `0` shows all. */
export function GanttChart({ title, rows, breaks = [], hasPath = false, picked, onPick }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [range, setRange] = useState<Span | null>(null);
  const [hover, setHover] = useState<Hover | null>(null);
  const [drag, setDrag] = useState<Span | null>(null); // in pixels
  const whole = useMemo(() => spanOf(rows), [rows]);
  const longest = useMemo(
    () =>
      Math.max(0, ...rows.map((row) => row.bars.reduce((most, bar) => Math.max(most, bar.to - bar.from), 0))),
    [rows],
  );
  const theme = shownTheme.value;
  const height = rows.length * ROW + AXIS;
  const shown = range ?? whole;
  const marked = hover?.bar.key ?? picked;

  useLayoutEffect(() => {
    const element = host.current;
    if (!element) {
      return;
    }
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || !shown || width === 0) {
      return;
    }
    const frame = requestAnimationFrame(() => {
      const ratio = window.devicePixelRatio || 1;
      element.width = Math.round(width * ratio);
      element.height = Math.round(height * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      paint(context, {
        rows,
        breaks,
        shown,
        whole: whole ?? shown,
        longest,
        width,
        height,
        theme,
        marked,
        hasPath,
      });
    });
    return () => cancelAnimationFrame(frame);
  }, [rows, breaks, shown?.[0], shown?.[1], longest, width, height, theme, marked, hasPath]);

  if (!whole || !shown) {
    return null;
  }
  const toTime = (x: number) => shown[0] + (x / Math.max(1, width)) * (shown[1] - shown[0]);
  const find = (event: { offsetX: number; offsetY: number }): GanttBar | null => {
    const row = rows[Math.floor(event.offsetY / ROW)];
    const slack = (2 / Math.max(1, width)) * (shown[1] - shown[0]);
    return row ? barAt(row.bars, toTime(event.offsetX), slack) : null;
  };
  const zoom = (factor: number) => setRange(zoomSpan(shown, whole, factor, 0.5));
  const onKeyDown = (event: KeyboardEvent) => {
    const actions: Record<string, () => void> = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      "0": () => setRange(null),
      ArrowLeft: () => setRange(range && moveSpan(range, whole, -0.2)),
      ArrowRight: () => setRange(range && moveSpan(range, whole, 0.2)),
      Escape: () => onPick(null),
    };
    const action = actions[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  };
  return (
    <div class={styles["chart"]}>
      <div class={styles["controls"]}>
        <Button aria-label="zoom in" onClick={() => zoom(0.5)}>
          +
        </Button>
        <Button aria-label="zoom out" disabled={range === null} onClick={() => zoom(2)}>
          −
        </Button>
        <Button disabled={range === null} onClick={() => setRange(null)}>
          Reset zoom
        </Button>
        <span class={styles["hint"]}>Drag to zoom, click a bar to follow its trial.</span>
      </div>
      <div class={styles["rows"]}>
        <ol class={styles["labels"]} aria-hidden="true">
          {rows.map((row, index) => (
            <li key={index} title={row.label}>
              {row.label}
            </li>
          ))}
        </ol>
        <div
          ref={host}
          class={styles["plot"]}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="group"
          aria-roledescription="chart"
          aria-label={title}
          onKeyDown={onKeyDown}
        >
          <canvas
            ref={canvas}
            class={styles["canvas"]}
            style={{ width: `${width}px`, height: `${height}px` }}
            onPointerDown={(event) => {
              if (event.button === 0) {
                event.currentTarget.setPointerCapture(event.pointerId);
                setDrag([event.offsetX, event.offsetX]);
              }
            }}
            onPointerMove={(event) => {
              if (drag) {
                setDrag([drag[0], event.offsetX]);
              } else {
                const bar = find(event);
                setHover(bar && { bar, x: event.offsetX, y: event.offsetY });
              }
            }}
            onPointerUp={(event) => {
              setDrag(null);
              if (drag && Math.abs(event.offsetX - drag[0]) >= MIN_DRAG) {
                const ends = [toTime(drag[0]), toTime(event.offsetX)].sort((one, two) => one - two) as [
                  number,
                  number,
                ];
                setRange([Math.max(whole[0], ends[0]), Math.min(whole[1], ends[1])]);
              } else if (drag) {
                const key = find(event)?.key ?? null;
                onPick(key === picked ? null : key);
              }
            }}
            onPointerCancel={() => setDrag(null)}
            onPointerLeave={() => setHover(null)}
            onDblClick={() => setRange(null)}
          />
          {drag && Math.abs(drag[1] - drag[0]) >= MIN_DRAG && (
            <div
              class={styles["drag"]}
              style={{ left: `${Math.min(...drag)}px`, width: `${Math.abs(drag[1] - drag[0])}px` }}
            />
          )}
          {hover && !drag && (
            <p
              class={styles["tooltip"]}
              style={{
                top: `${hover.y + 16}px`,
                ...(hover.x > width / 2
                  ? { right: `${width - hover.x + 8}px` }
                  : { left: `${hover.x + 12}px` }),
              }}
            >
              {hover.bar.title.slice(0, MAX_NAMES)}
              <span>
                {formatDuration(hover.bar.to - hover.bar.from)}, from{" "}
                {formatDuration(hover.bar.from - whole[0])}
              </span>
            </p>
          )}
        </div>
      </div>
    </div>
  );
}

interface Picture {
  rows: readonly GanttRow[];
  breaks: readonly Span[];
  shown: Span;
  whole: Span;
  longest: number;
  width: number;
  height: number;
  theme: ShownTheme;
  marked: string | null;
  hasPath: boolean;
}

function paint(context: CanvasRenderingContext2D, picture: Picture): void {
  const { rows, breaks, shown, whole, longest, width, height, theme, marked, hasPath } = picture;
  const style = getComputedStyle(document.documentElement);
  const token = (name: string) => style.getPropertyValue(name).trim();
  const toX = (time: number) => ((time - shown[0]) / (shown[1] - shown[0])) * width;
  const bottom = height - AXIS;
  context.clearRect(0, 0, width, height);
  context.font = `11px ${token("--font")}`;
  context.textBaseline = "middle";

  context.fillStyle = token("--surface-2");
  for (const [from, to] of breaks) {
    context.fillRect(toX(from), 0, toX(to) - toX(from), bottom);
  }
  context.strokeStyle = token("--line");
  for (let row = 1; row <= rows.length; row += 1) {
    context.beginPath();
    context.moveTo(0, row * ROW - 0.5);
    context.lineTo(width, row * ROW - 0.5);
    context.stroke();
  }

  const path: { x: number; end: number; y: number }[] = [];
  for (const [index, row] of rows.entries()) {
    for (let at = firstBar(row.bars, shown[0], longest); at < row.bars.length; at += 1) {
      const bar = row.bars[at];
      if (!bar || bar.from > shown[1]) {
        break;
      }
      const [left, right] = [Math.max(-2, toX(bar.from)), Math.min(width + 2, toX(bar.to))];
      if (right < 0) {
        continue;
      }
      const size = bar.isLight ? LIGHT : BAR;
      const top = index * ROW + (ROW - size) / 2;
      const isMarked = bar.key === marked;
      context.globalAlpha = marked !== null && !isMarked ? 0.18 : 1;
      context.fillStyle = barColour(bar.colour, theme);
      context.fillRect(left, top, Math.max(0.6, right - left - 0.6), size);
      if (right - left > MIN_TEXT && !bar.isLight) {
        context.fillStyle = theme === "dark" ? "#0b140f" : "#ffffff";
        context.fillText(bar.label, left + 4, top + size / 2, right - left - 6);
      }
      if (isMarked && !bar.isLight) {
        path.push({ x: toX(bar.from), end: toX(bar.to), y: index * ROW + ROW / 2 });
      }
    }
  }
  context.globalAlpha = 1;
  if (hasPath && path.length > 1) {
    path.sort((one, two) => one.x - two.x);
    context.strokeStyle = token("--text");
    context.lineWidth = 1;
    for (const [index, to] of path.entries()) {
      const from = path[index - 1];
      if (from && from.y !== to.y) {
        context.beginPath();
        context.moveTo(from.end, from.y);
        context.lineTo(to.x, to.y);
        context.stroke();
      }
    }
  }

  context.fillStyle = token("--text-2");
  context.strokeStyle = token("--line-strong");
  for (const tick of roundTicks(shown[0] - whole[0], shown[1] - whole[0], Math.max(2, width / 110))) {
    const x = toX(tick + whole[0]);
    context.beginPath();
    context.moveTo(x, bottom);
    context.lineTo(x, bottom + 4);
    context.stroke();
    const text = formatSeconds(tick);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(0, x - half), width - 2 * half), bottom + 13);
  }
}
