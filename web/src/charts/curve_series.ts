/** What a chart of curves draws, and the pure arithmetic over it. */

/** Something that happened at one x: a live change of a param, a checkpoint, a new attempt. */
export interface CurveMark {
  x: number;
  label: string;
}

/** The lowest and the highest value at each x of a curve. NaN where there is none. */
export interface CurveBand {
  low: Float64Array;
  high: Float64Array;
}

/**
 * A curve. `x` ascends; `y` has its length, and NaN is a gap. `colour`: a number of the palette. `hasGaps`: NaN
 * is only a gap, otherwise it is a logged value, which is marked.
 */
export interface CurveSeries {
  key: string;
  label: string;
  colour: number;
  x: Float64Array;
  y: Float64Array;
  band?: CurveBand;
  marks?: readonly CurveMark[];
  hasGaps?: boolean;
}

/** Of more curves, a chart draws only the lines: bands and raw values would cover them. */
export const MANY_CURVES = 20;

export type Range = readonly [low: number, high: number];

/** A point of a curve near the cursor. `index` is its place in the curve. */
export interface NearPoint {
  series: CurveSeries;
  index: number;
  x: number;
  y: number;
}

export const at = (values: Float64Array, index: number): number => values[index] ?? Number.NaN;

/** Returns the first place with a value of at least `bound`; the length if there is none. */
export function lowerBound(values: Float64Array, bound: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (at(values, middle) < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** Returns the place of the value nearest to `x`, -1 without values. */
export function nearestIndex(values: Float64Array, x: number): number {
  const right = lowerBound(values, x);
  if (right === 0) {
    return values.length > 0 ? 0 : -1;
  }
  if (right === values.length) {
    return right - 1;
  }
  return x - at(values, right - 1) <= at(values, right) - x ? right - 1 : right;
}

/** Returns the range of x of all curves; null without points. A logarithmic axis shows positive values only. */
export function xBounds(series: readonly CurveSeries[], isLog: boolean): Range | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const { x } of series) {
    const first = isLog ? lowerBound(x, Number.MIN_VALUE) : 0;
    if (first < x.length) {
      low = Math.min(low, at(x, first));
      high = Math.max(high, at(x, x.length - 1));
    }
  }
  return low <= high ? widen([low, high], isLog) : null;
}

/** Returns the range of the finite values within a range of x, of curves and bands; null without values. */
export function yBounds(series: readonly CurveSeries[], [begin, end]: Range, isLog: boolean): Range | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  const take = (value: number) => {
    if (Number.isFinite(value) && !(isLog && value <= 0)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  };
  for (const { x, y, band } of series) {
    // with the points beside the range, since the lines to them cross it
    const first = Math.max(0, lowerBound(x, begin) - 1);
    for (let i = first; i < x.length; i += 1) {
      take(at(y, i));
      if (band) {
        take(at(band.low, i));
        take(at(band.high, i));
      }
      if (at(x, i) > end) {
        break;
      }
    }
  }
  return low <= high ? [low, high] : null;
}

/** Returns a range with a little room on both sides, which is never empty. */
export function widen([low, high]: Range, isLog: boolean, share = 0): Range {
  if (isLog) {
    const factor = low === high ? 2 : (high / low) ** share;
    return [low / factor, high * factor];
  }
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * share;
  return [low - room, high + room];
}

/** Returns where values are drawn: `low` at `begin`, and `high` so many pixels after it. */
export function placeValues(
  [low, high]: Range,
  isLog: boolean,
  begin: number,
  length: number,
): (value: number) => number {
  if (isLog) {
    const logLow = Math.log10(low);
    const factor = length / (Math.log10(high) - logLow);
    return (value) => begin + (Math.log10(value) - logLow) * factor;
  }
  const factor = length / (high - low);
  return (value) => begin + (value - low) * factor;
}

/** Returns many curves without their bands; few as they are. */
export function withoutManyBands(series: readonly CurveSeries[]): readonly CurveSeries[] {
  return series.length <= MANY_CURVES || series.every((each) => !each.band)
    ? series
    : series.map((each) => {
        const line = { ...each };
        delete line.band;
        return line;
      });
}

/**
 * Returns the point of each curve that is nearest to `x`, without curves that end before it or begin after it
 * by more than `tolerance`.
 */
export function nearPoints(series: readonly CurveSeries[], x: number, tolerance: number): NearPoint[] {
  const found: NearPoint[] = [];
  for (const each of series) {
    const index = nearestIndex(each.x, x);
    if (index < 0 || (each.hasGaps && Number.isNaN(at(each.y, index)))) {
      continue;
    }
    const first = at(each.x, 0);
    const last = at(each.x, each.x.length - 1);
    if (x >= first - tolerance && x <= last + tolerance) {
      found.push({ series: each, index, x: at(each.x, index), y: at(each.y, index) });
    }
  }
  return found;
}

/** Sorts points by value, the highest first; those without a value last. */
export function byValue(left: NearPoint, right: NearPoint): number {
  const [a, b] = [left.y, right.y];
  if (Number.isNaN(a) || Number.isNaN(b)) {
    return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  }
  return a === b ? 0 : b - a;
}

/** Returns the distinct x of all curves in ascending order. */
export function unionOfX(series: readonly Pick<CurveSeries, "x">[]): Float64Array {
  const length = series.reduce((sum, each) => sum + each.x.length, 0);
  const all = new Float64Array(length);
  let place = 0;
  for (const { x } of series) {
    all.set(x, place);
    place += x.length;
  }
  all.sort();
  let count = 0;
  for (const value of all) {
    if (!Number.isNaN(value) && (count === 0 || value !== all[count - 1])) {
      all[count] = value;
      count += 1;
    }
  }
  return all.slice(0, count);
}

/** Returns the values of a curve at ascending `x`: its own, or between two of its points; NaN outside. */
export function valuesAt(series: Pick<CurveSeries, "x" | "y">, x: Float64Array): Float64Array {
  const values = new Float64Array(x.length).fill(Number.NaN);
  let right = 0;
  for (let i = 0; i < x.length; i += 1) {
    const wanted = at(x, i);
    while (right < series.x.length && at(series.x, right) < wanted) {
      right += 1;
    }
    if (at(series.x, right) === wanted) {
      values[i] = at(series.y, right);
    } else if (right > 0 && right < series.x.length) {
      const [x0, x1] = [at(series.x, right - 1), at(series.x, right)];
      const [y0, y1] = [at(series.y, right - 1), at(series.y, right)];
      values[i] = y0 + ((y1 - y0) * (wanted - x0)) / (x1 - x0);
    }
  }
  return values;
}

/** Rows of x and the value of each curve there, for reading; at most `count` of them, spread over all x. */
export function valueRows(
  series: readonly CurveSeries[],
  count: number,
): { x: number; values: (number | null)[] }[] {
  const union = unionOfX(series);
  const step = Math.max(1, (union.length - 1) / Math.max(1, count - 1));
  const places = Array.from({ length: Math.min(count, union.length) }, (_, row) => Math.round(row * step));
  return places.map((place) => {
    const x = at(union, place);
    const values = series.map((each) => {
      const index = lowerBound(each.x, x);
      return at(each.x, index) === x ? at(each.y, index) : null;
    });
    return { x, values };
  });
}
