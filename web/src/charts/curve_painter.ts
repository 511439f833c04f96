/** Paints curves on a canvas. Each curve has its own x, so that curves of many runs need no common axis. */
import { at, type CurveSeries, lowerBound, type Range } from "./curve_series";

/** The canvas and its plot area in pixels of the canvas, with the places of values. */
export interface Frame {
  context: CanvasRenderingContext2D;
  left: number;
  top: number;
  width: number;
  height: number;
  pixelRatio: number;
  toX: (value: number) => number;
  toY: (value: number) => number;
  isLogX: boolean;
  isLogY: boolean;
}

export interface Stroke {
  colour: string;
  width: number;
  alpha: number;
  dash: readonly number[];
}

const DOT_SPACING = 24; // pixels per point, from which each point is a dot
const DENSE = 4; // points per pixel, from which only the extremes of each pixel are drawn

/** Limits all painting to the plot area. */
export function clip(frame: Frame, paint: () => void): void {
  const { context } = frame;
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.clip();
  paint();
  context.restore();
}

/** Returns the first place to draw and the one after the last: the points in the range and one on each side. */
function visible(x: Float64Array, [begin, end]: Range, isLog: boolean): [number, number] {
  const first = isLog ? lowerBound(x, Number.MIN_VALUE) : 0;
  return [Math.max(first, lowerBound(x, begin) - 1), Math.min(x.length, lowerBound(x, end) + 2)];
}

/** Draws a curve. Gaps stay gaps; a point without neighbours is a dot. */
export function paintCurve(frame: Frame, series: CurveSeries, range: Range, stroke: Stroke): void {
  const { context, pixelRatio, toX, toY } = frame;
  const [first, last] = visible(series.x, range, frame.isLogX);
  if (last <= first) {
    return;
  }
  const isDrawn = (value: number) => Number.isFinite(value) && !(frame.isLogY && value <= 0);
  const line = new Path2D();
  const dots = new Path2D();
  const hasDots = (last - first) * DOT_SPACING * pixelRatio < frame.width;
  const radius = Math.max(stroke.width, 1.5) * 1.4 * pixelRatio;
  let wasDrawn = false;
  const add = (index: number) => {
    const value = at(series.y, index);
    if (!isDrawn(value)) {
      wasDrawn = false;
      return;
    }
    const [px, py] = [toX(at(series.x, index)), toY(value)];
    if (wasDrawn) {
      line.lineTo(px, py);
    } else {
      line.moveTo(px, py);
    }
    const isAlone = !wasDrawn && !(index + 1 < last && isDrawn(at(series.y, index + 1)));
    if (hasDots || isAlone) {
      dots.moveTo(px + radius, py);
      dots.arc(px, py, radius, 0, 2 * Math.PI);
    }
    wasDrawn = true;
  };
  if (last - first > DENSE * frame.width) {
    for (const index of extremesPerPixel(frame, series, first, last)) {
      add(index);
    }
  } else {
    for (let index = first; index < last; index += 1) {
      add(index);
    }
  }
  context.globalAlpha = stroke.alpha;
  context.strokeStyle = context.fillStyle = stroke.colour;
  context.lineWidth = stroke.width * pixelRatio;
  context.lineJoin = "round";
  context.setLineDash(stroke.dash.map((length) => length * pixelRatio));
  context.stroke(line);
  context.setLineDash([]);
  context.fill(dots);
  context.globalAlpha = 1;
}

/** Yields the first, lowest, highest and last point of each pixel column, and each gap. */
function* extremesPerPixel(
  frame: Frame,
  { x, y }: CurveSeries,
  first: number,
  last: number,
): Generator<number> {
  let index = first;
  while (index < last) {
    const column = Math.floor(frame.toX(at(x, index)));
    const begin = index;
    let [low, high, gap] = [begin, begin, -1];
    while (index === begin || (index < last && Math.floor(frame.toX(at(x, index))) === column)) {
      const value = at(y, index);
      if (Number.isNaN(value)) {
        gap = index;
      }
      low = value < at(y, low) || Number.isNaN(at(y, low)) ? index : low;
      high = value > at(y, high) || Number.isNaN(at(y, high)) ? index : high;
      index += 1;
    }
    const places = new Set([begin, low, high, index - 1, ...(gap < 0 ? [] : [gap])]);
    yield* [...places].sort((a, b) => a - b);
  }
}

/** Fills what lies between the two edges of a curve's band. */
export function paintBand(frame: Frame, series: CurveSeries, range: Range, colour: string): void {
  const { context, toX, toY } = frame;
  const { band, x } = series;
  if (!band) {
    return;
  }
  const [first, last] = visible(x, range, frame.isLogX);
  const floor = frame.top + frame.height * 2; // below the plot: where a logarithm has no place
  const place = (value: number) => (frame.isLogY && value <= 0 ? floor : toY(value));
  const area = new Path2D();
  let begin = first;
  while (begin < last) {
    let end = begin;
    while (end < last && Number.isFinite(at(band.low, end)) && Number.isFinite(at(band.high, end))) {
      end += 1;
    }
    if (end > begin) {
      area.moveTo(toX(at(x, begin)), place(at(band.high, begin)));
      for (let i = begin + 1; i < end; i += 1) {
        area.lineTo(toX(at(x, i)), place(at(band.high, i)));
      }
      for (let i = end - 1; i >= begin; i -= 1) {
        area.lineTo(toX(at(x, i)), place(at(band.low, i)));
      }
      area.closePath();
    }
    begin = end + 1;
  }
  context.globalAlpha = 0.16;
  context.fillStyle = colour;
  context.fill(area);
  context.globalAlpha = 1;
}

/** Draws what is not finite at the edge of the plot: +∞ above, −∞ and NaN below. */
export function paintNotFinite(frame: Frame, series: CurveSeries, range: Range, colour: string): void {
  const { context, pixelRatio } = frame;
  const [first, last] = visible(series.x, range, frame.isLogX);
  const size = 4 * pixelRatio;
  context.fillStyle = colour;
  for (let index = first; index < last; index += 1) {
    const value = at(series.y, index);
    if (Number.isFinite(value)) {
      continue;
    }
    const isAbove = value === Number.POSITIVE_INFINITY;
    const [px, edge] = [frame.toX(at(series.x, index)), isAbove ? frame.top : frame.top + frame.height];
    const tip = isAbove ? size : -size;
    context.beginPath();
    context.moveTo(px - size, edge);
    context.lineTo(px + size, edge);
    context.lineTo(px, edge + 1.6 * tip);
    context.fill();
  }
}

/** Draws the marks of a curve as thin lines with a diamond below. */
export function paintMarks(frame: Frame, series: CurveSeries, colour: string): void {
  const { context, pixelRatio, top, height } = frame;
  const size = 4 * pixelRatio;
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = pixelRatio;
  context.setLineDash([2 * pixelRatio, 3 * pixelRatio]);
  for (const mark of series.marks ?? []) {
    const px = Math.round(frame.toX(mark.x)) + 0.5;
    context.beginPath();
    context.moveTo(px, top);
    context.lineTo(px, top + height);
    context.globalAlpha = 0.6;
    context.stroke();
    context.globalAlpha = 1;
    context.beginPath();
    context.moveTo(px, top);
    context.lineTo(px + size, top + size);
    context.lineTo(px, top + 2 * size);
    context.lineTo(px - size, top + size);
    context.fill();
  }
  context.setLineDash([]);
}
