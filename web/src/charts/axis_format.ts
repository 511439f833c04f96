/** Where the ticks of an axis are, and how its values are written. */
import { formatDuration, formatNumber } from "@/text/format";

export type XKind = "step" | "time" | "elapsed" | "metric";

/** Distances between ticks of an axis of seconds. */
export const SECOND_STEPS = [
  ...[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30],
  ...[60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400],
  ...[2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => days * 86400),
];

/** Returns an x as text. Times are those of the reader's clock. */
export function formatX(kind: XKind, x: number): string {
  if (kind === "time") {
    const date = new Date(x * 1000);
    return Number.isNaN(date.getTime()) ? "–" : date.toLocaleString();
  }
  return kind === "elapsed" ? formatDuration(x) : formatNumber(x);
}

/** Returns the text of a tick: short, with `k` and `M` for large numbers. */
export function formatTick(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e15) {
    return value.toExponential(1).replace("e+", "e");
  }
  for (const [unit, factor] of [
    ["T", 1e12],
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ] as const) {
    if (size >= factor * 10 || (size >= factor && value % (factor / 100) === 0)) {
      return `${Number((value / factor).toPrecision(6))}${unit}`;
    }
  }
  if (size > 0 && size < 1e-4) {
    return value.toExponential(2).replace(/\.?0+e/, "e");
  }
  return String(Number(value.toPrecision(8)));
}

/** Returns the text of a tick of seconds: as exact as the tick, and in the words of a duration from a minute on. */
export function formatSeconds(value: number): string {
  return Math.abs(value) < 60 ? `${formatTick(value)}s` : formatDuration(value);
}

/** Returns round numbers that divide a range into about `count` parts. */
export function roundTicks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Returns the ticks of a logarithmic axis: powers of ten, with 2 and 5 times them where there is room. */
export function logTicks(low: number, high: number): number[] {
  const decades = Math.log10(high / low);
  if (decades < 1) {
    return roundTicks(low, high, 4);
  }
  const step = Math.ceil(decades / 6);
  const factors = decades < 3 ? [1, 2, 5] : [1];
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const factor of power % step === 0 ? factors : []) {
      const tick = Number(`${factor}e${power}`);
      if (tick >= low && tick <= high) {
        ticks.push(tick);
      }
    }
  }
  return ticks;
}
