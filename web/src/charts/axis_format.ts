/** How the values of an x axis are written. */
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
