/** Smoothing of curves for display. */
import { at, type CurveSeries } from "./curve_series";

/**
 * Returns the exponential moving average with bias correction, as Adam corrects its moments: the average does
 * not begin at zero. `weight` is that of the earlier values, from 0 (none) to below 1. Values that are not
 * finite stay as they are and do not count.
 */
export function smooth(values: Float64Array, weight: number): Float64Array {
  const smoothed = new Float64Array(values.length);
  let sum = 0;
  let correction = 0;
  for (let i = 0; i < values.length; i += 1) {
    const value = at(values, i);
    if (Number.isFinite(value)) {
      sum = weight * sum + (1 - weight) * value;
      correction = weight * correction + (1 - weight);
      smoothed[i] = sum / correction;
    } else {
      smoothed[i] = value;
    }
  }
  return smoothed;
}

const newest = new WeakMap<Float64Array, { weight: number; smoothed: Float64Array }>();

/** As `smooth`, without computing it again for the same values, which must not change. */
function smoothOnce(values: Float64Array, weight: number): Float64Array {
  const known = newest.get(values);
  if (known?.weight === weight) {
    return known.smoothed;
  }
  const smoothed = smooth(values, weight);
  newest.set(values, { weight, smoothed });
  return smoothed;
}

/** Returns the curves with smoothed values, bands included; the same objects with a weight of 0. */
export function smoothAll(series: readonly CurveSeries[], weight: number): readonly CurveSeries[] {
  if (weight <= 0) {
    return series;
  }
  return series.map((each) => ({
    ...each,
    y: smoothOnce(each.y, weight),
    ...(each.band && {
      band: { low: smoothOnce(each.band.low, weight), high: smoothOnce(each.band.high, weight) },
    }),
  }));
}
