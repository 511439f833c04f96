/** The plot of a chart of curves: uPlot's axes, zoom and cursor, with curves that are painted here. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatSeconds, formatTick, logTicks, SECOND_STEPS, type XKind } from "./axis_format";
import {
  at,
  type CurveMark,
  type CurveSeries,
  lowerBound,
  type NearPoint,
  nearPoints,
  placeValues,
  type Range,
  widen,
  xBounds,
  yBounds,
} from "./curve_series";
import {
  clip,
  type Frame,
  paintBand,
  paintCurve,
  paintMarks,
  paintNotFinite,
  type Stroke,
} from "./curve_painter";
import { curveColour, curveDash, type ShownTheme } from "./palette";

/** What needs a new plot when it changes. */
export interface PlotShape {
  xKind: XKind;
  isLogX: boolean;
  isLogY: boolean;
  formatY: (value: number) => string;
}

/** What is drawn. `raw`: the curves before smoothing, drawn faintly. `range`: of x; null shows all points. */
export interface PlotView {
  curves: readonly CurveSeries[];
  raw: readonly CurveSeries[];
  range: Range | null;
  theme: ShownTheme;
}

/** Where the cursor is, in pixels of the chart, and the points there. */
export interface PlotCursor {
  left: number;
  top: number;
  x: number;
  points: NearPoint[];
  nearest: NearPoint | null;
  marks: { series: CurveSeries; mark: CurveMark }[];
}

export interface PlotEvents {
  onCursor: (cursor: PlotCursor | null) => void;
  onZoom: (range: Range | null) => void;
}

const REACH = 28; // pixels from which the nearest curve is highlighted
const HIDDEN = -10; // where uPlot has its cursor while it shows none
const MAX_DOTS = 40;
const LOG = { distr: 3 }; // uPlot's logarithmic scale
const LINE = { width: 1.6, alpha: 1 };

export class CurvePlot {
  private readonly plot: uPlot;
  private readonly overlay = document.createElement("canvas");
  private view: PlotView = { curves: [], raw: [], range: null, theme: "light" };
  private highlighted: string | null = null;
  private points: readonly NearPoint[] = [];
  private cursorX: number | null = null;

  constructor(
    host: HTMLElement,
    size: { width: number; height: number },
    private readonly shape: PlotShape,
    private readonly events: PlotEvents,
  ) {
    this.plot = new uPlot(this.options(size), [Float64Array.of(0, 1)], host);
    Object.assign(this.overlay.style, { position: "absolute", inset: "0", width: "100%", height: "100%" });
    this.overlay.style.pointerEvents = "none";
    this.plot.over.append(this.overlay);
  }

  destroy(): void {
    this.plot.destroy();
  }

  resize(width: number, height: number): void {
    if (width !== this.plot.width || height !== this.plot.height) {
      this.plot.setSize({ width, height });
    }
  }

  update(view: PlotView): void {
    this.view = view;
    const [min, max] = this.xRange();
    // not in a batch: a new plot draws itself in the same microtask, which is then the only time
    this.plot.setData([Float64Array.of(min, max)], false);
    this.plot.setScale("x", { min, max });
    this.plot.redraw(false, true);
  }

  /** Draws one curve over all others; null none. */
  highlight(key: string | null): void {
    if (key !== this.highlighted) {
      this.highlighted = key;
      this.paintOverlay();
    }
  }

  /** Shows the cursor at an x without an event; null hides it. */
  linkCursor(x: number | null): void {
    const left = x === null ? HIDDEN : this.plot.valToPos(x, "x");
    const isInside = left >= 0 && left <= this.plot.over.clientWidth;
    this.plot.setCursor({ left: isInside ? left : HIDDEN, top: isInside ? 0 : HIDDEN }, false);
    this.setPoints(isInside ? x : null);
  }

  /** Moves the cursor to the next x of any curve, or to the end of the shown range. Reports it as an event. */
  stepCursor(move: "next" | "previous" | "first" | "last"): void {
    const [begin, end] = this.xRange();
    const from = { next: this.cursorX ?? begin, previous: this.cursorX ?? end, first: begin, last: end }[
      move
    ];
    const isForward = move === "next" || move === "first";
    const isStrict = move === "next" || move === "previous";
    let found: number | null = null;
    for (const { x } of this.view.curves) {
      let place = lowerBound(x, from);
      if (isForward) {
        place += isStrict && this.cursorX !== null && at(x, place) === from ? 1 : 0;
      } else {
        place -= !isStrict && at(x, place) === from ? 0 : 1;
      }
      const value = at(x, place);
      if (value >= begin && value <= end) {
        found = found === null ? value : isForward ? Math.min(found, value) : Math.max(found, value);
      }
    }
    if (found !== null) {
      this.linkCursor(found);
      this.report(this.plot.valToPos(found, "x"), this.plot.over.clientHeight / 3, found);
    }
  }

  /** Zooms around the middle, or the cursor, by a factor. */
  zoomBy(factor: number): void {
    const toScale = this.shape.isLogX ? Math.log : (value: number) => value;
    const fromScale = this.shape.isLogX ? Math.exp : (value: number) => value;
    const [begin, end] = this.xRange().map(toScale) as [number, number];
    const middle = this.cursorX === null ? (begin + end) / 2 : toScale(this.cursorX);
    this.events.onZoom([
      fromScale(middle - (middle - begin) * factor),
      fromScale(middle + (end - middle) * factor),
    ]);
  }

  hideCursor(): void {
    this.linkCursor(null);
    this.events.onCursor(null);
  }

  private options({ width, height }: { width: number; height: number }): uPlot.Options {
    const { xKind, isLogX, isLogY, formatY } = this.shape;
    const colour = (name: string) => () => token(name);
    const axis = {
      stroke: colour("--text-3"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    };
    // uPlot's own ticks never end where the lowest value is no round number
    const logAxis = {
      splits: (_: uPlot, __: number, low: number, high: number) => logTicks(low, high),
      filter: (_: uPlot, splits: number[]) => splits,
    };
    const texts = (write: (value: number) => string) => (_: uPlot, splits: (number | null)[]) =>
      splits.map((value) => (value === null ? "" : write(value)));
    return {
      width,
      height,
      padding: [8, 12, 0, 0],
      legend: { show: false },
      series: [{}],
      scales: {
        x: { time: xKind === "time", range: (_, min, max) => [min, max], ...(isLogX && LOG) },
        y: { range: () => [...this.yRange()], ...(isLogY && LOG) },
      },
      axes: [
        {
          ...axis,
          size: 26,
          gap: 3,
          space: 64,
          ...(isLogX && logAxis),
          ...(xKind === "elapsed" && !isLogX && { incrs: SECOND_STEPS }),
          ...(xKind !== "time" && {
            values: texts(xKind === "elapsed" ? formatSeconds : formatTick),
          }),
        },
        {
          ...axis,
          ...(isLogY && logAxis),
          scale: "y",
          gap: 4,
          size: (_, labels: string[] | null) =>
            18 + 6.2 * Math.max(2, ...(labels ?? []).map((text) => text.length)),
          values: texts(formatY),
        },
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 5 },
        bind: { dblclick: () => () => (this.events.onZoom(null), null) },
      },
      hooks: {
        draw: [() => this.paint()],
        setSelect: [() => this.select()],
        setCursor: [() => this.moveCursor()],
      },
    };
  }

  private xRange(): Range {
    const { isLogX } = this.shape;
    return this.view.range ?? xBounds(this.view.curves, isLogX) ?? (isLogX ? [1, 10] : [0, 1]);
  }

  private yRange(): Range {
    const { isLogY } = this.shape;
    const bounds = yBounds(this.view.curves, this.xRange(), isLogY);
    return bounds ? widen(bounds, isLogY, 0.06) : isLogY ? [1, 10] : [0, 1];
  }

  private frame(isOverlay: boolean): Frame | null {
    const canvas = isOverlay ? this.overlay : this.plot.ctx.canvas;
    const context = canvas.getContext("2d");
    if (!context) {
      return null;
    }
    const { bbox } = this.plot;
    const [left, top] = isOverlay ? [0, 0] : [bbox.left, bbox.top];
    const place = (scale: "x" | "y", isLog: boolean, begin: number, length: number) => {
      const { min, max } = this.plot.scales[scale] ?? {};
      return placeValues([min ?? 0, max ?? 1], isLog, begin, length); // much faster than uPlot's `valToPos`
    };
    const { isLogX, isLogY } = this.shape;
    return {
      context,
      left,
      top,
      width: bbox.width,
      height: bbox.height,
      pixelRatio: uPlot.pxRatio,
      toX: place("x", isLogX, left, bbox.width),
      toY: place("y", isLogY, top + bbox.height, -bbox.height),
      isLogX,
      isLogY,
    };
  }

  private stroke(series: CurveSeries): Stroke {
    return {
      ...LINE,
      colour: curveColour(series.colour, this.view.theme),
      dash: curveDash(series.colour),
    };
  }

  private paint(): void {
    const frame = this.frame(false);
    if (!frame) {
      return;
    }
    const { curves, raw } = this.view;
    const range = this.xRange();
    clip(frame, () => {
      for (const series of curves) {
        paintBand(frame, series, range, curveColour(series.colour, this.view.theme));
      }
      for (const series of raw) {
        paintCurve(frame, series, range, { ...this.stroke(series), width: 1, alpha: 0.28, dash: [] });
      }
      for (const series of curves) {
        paintCurve(frame, series, range, this.stroke(series));
        paintNotFinite(frame, series, range, curveColour(series.colour, this.view.theme));
        paintMarks(frame, series, curveColour(series.colour, this.view.theme));
      }
    });
    this.points = this.pointsAt(this.cursorX);
    this.paintOverlay();
  }

  private paintOverlay(): void {
    const { width, height } = this.plot.bbox;
    if (this.overlay.width !== width || this.overlay.height !== height) {
      Object.assign(this.overlay, { width, height });
    }
    const frame = this.frame(true);
    if (!frame) {
      return;
    }
    const { context } = frame;
    context.clearRect(0, 0, width, height);
    const highlighted = this.view.curves.find((series) => series.key === this.highlighted);
    if (!highlighted && this.points.length === 0) {
      return;
    }
    const surface = token("--surface"); // computes all styles
    if (highlighted) {
      const range = this.xRange();
      const stroke = this.stroke(highlighted);
      paintCurve(frame, highlighted, range, { ...stroke, colour: surface, width: 6, dash: [], alpha: 0.8 });
      paintCurve(frame, highlighted, range, { ...stroke, width: 2.8 });
    }
    for (const { series, x, y } of this.points.slice(0, MAX_DOTS)) {
      if (Number.isFinite(y) && !(this.shape.isLogY && y <= 0)) {
        context.beginPath();
        context.arc(frame.toX(x), frame.toY(y), 3.5 * frame.pixelRatio, 0, 2 * Math.PI);
        context.fillStyle = curveColour(series.colour, this.view.theme);
        context.strokeStyle = surface;
        context.lineWidth = 1.5 * frame.pixelRatio;
        context.fill();
        context.stroke();
      }
    }
  }

  private setPoints(x: number | null): void {
    this.cursorX = x;
    const points = this.pointsAt(x);
    if (points.length > 0 || this.points.length > 0) {
      this.points = points;
      this.paintOverlay();
    }
  }

  private pointsAt(x: number | null): NearPoint[] {
    return x === null ? [] : nearPoints(this.view.curves, x, this.tolerance(x));
  }

  /** How far a point may be from an x to count as there: some pixels. */
  private tolerance(x: number): number {
    const left = this.plot.valToPos(x, "x");
    return Math.abs(this.plot.posToVal(left + REACH, "x") - x);
  }

  private moveCursor(): void {
    const { left = HIDDEN, top = HIDDEN } = this.plot.cursor;
    if (left < 0) {
      this.setPoints(null);
      this.events.onCursor(null);
      return;
    }
    const x = this.plot.posToVal(left, "x");
    this.setPoints(x);
    this.report(left, top, x);
  }

  private report(left: number, top: number, x: number): void {
    let nearest: NearPoint | null = null;
    let distance = REACH;
    for (const point of this.points) {
      const away = Math.abs(this.plot.valToPos(point.y, "y") - top);
      if (away < distance) {
        [nearest, distance] = [point, away];
      }
    }
    const marks = this.view.curves.flatMap((series) =>
      (series.marks ?? [])
        .filter((mark) => Math.abs(this.plot.valToPos(mark.x, "x") - left) < 6)
        .map((mark) => ({ series, mark })),
    );
    const { offsetLeft, offsetTop } = this.plot.over;
    this.events.onCursor({
      left: left + offsetLeft,
      top: top + offsetTop,
      x,
      points: [...this.points],
      nearest,
      marks,
    });
  }

  private select(): void {
    const { left, width } = this.plot.select;
    if (width > 0) {
      this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.events.onZoom([this.plot.posToVal(left, "x"), this.plot.posToVal(left + width, "x")]);
    }
  }
}

function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "gray";
}
