/** Axes of parallel coordinates: where values are on them, and what a brush on them selects. */
import { formatNumber } from "@/text/format";
import { formatTick, logTicks, roundTicks } from "./axis_format";

export type AxisValue = number | string | null;

/** Values of one kind, one for each line. */
export interface ParallelAxis {
  key: string;
  name: string;
  values: readonly AxisValue[];
}

/** A selection on an axis: values from `low` to `high`, or these texts. */
export type Brush = { low: number; high: number } | { texts: readonly string[] };
export type Brushes = ReadonlyMap<string, Brush>;

/** An axis with places from 0 to 1. */
export interface PlacedAxis extends ParallelAxis {
  kind: "linear" | "log" | "category";
  /** Whether a logarithmic axis can show all values. */
  canBeLog: boolean;
  low: number;
  high: number;
  texts: readonly string[];
  places: readonly (number | null)[];
  ticks: readonly { at: number; text: string }[];
}

const MAX_LABELS = 24; // of texts on an axis

const isFiniteNumber = (value: AxisValue): value is number =>
  typeof value === "number" && Number.isFinite(value);

/** Returns a value as text. */
export function axisText(value: AxisValue): string {
  return value === null ? "none" : typeof value === "number" ? formatNumber(value) : value;
}

/** Returns where the values are. Texts have their places by name; infinities, NaN and null have none. */
export function placeAxis(axis: ParallelAxis, wantsLog = false): PlacedAxis {
  const { values } = axis;
  const numbers = values.filter(isFiniteNumber);
  if (values.some((value) => typeof value === "string")) {
    return placeTexts(axis);
  }
  const canBeLog = numbers.length > 0 && numbers.every((value) => value > 0);
  const isLog = wantsLog && canBeLog;
  let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const base = { ...axis, canBeLog, texts: [] };
  if (numbers.length === 0) {
    return { ...base, kind: "linear", low: 0, high: 0, places: values.map(() => null), ticks: [] };
  }
  if (low === high) {
    [low, high] = isLog
      ? [low / 2, high * 2]
      : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  }
  const kind = isLog ? "log" : "linear";
  const at = (value: number) => placeOf({ kind, low, high }, value);
  const ticks = isLog ? logTicks(low, high) : roundTicks(low, high, 5);
  return {
    ...base,
    kind,
    low,
    high,
    places: values.map((value) => (isFiniteNumber(value) ? at(value) : null)),
    ticks: ticks.map((tick) => ({ at: at(tick), text: formatTick(tick) })),
  };
}

function placeOf({ kind, low, high }: Pick<PlacedAxis, "kind" | "low" | "high">, value: number): number {
  return kind === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

function placeTexts(axis: ParallelAxis): PlacedAxis {
  const { values } = axis;
  const texts = [...new Set(values.filter((value) => value !== null).map(axisText))].sort();
  const at = (index: number) => (index + 0.5) / texts.length;
  const every = Math.ceil(texts.length / MAX_LABELS);
  const order = new Map(texts.map((text, index) => [text, at(index)]));
  return {
    ...axis,
    kind: "category",
    canBeLog: false,
    low: 0,
    high: texts.length,
    texts,
    places: values.map((value) => (value === null ? null : (order.get(axisText(value)) ?? null))),
    ticks: texts.flatMap((text, index) => (index % every === 0 ? [{ at: at(index), text }] : [])),
  };
}

/** Returns what a brush from a place to another selects; null: nothing. */
export function brushOf(axis: PlacedAxis, from: number, to: number): Brush | null {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  if (axis.kind === "category") {
    const { texts } = axis;
    const chosen = texts.filter((_, index) => {
      const at = (index + 0.5) / texts.length;
      return low <= at && at <= high;
    });
    return chosen.length > 0 ? { texts: chosen } : null;
  }
  const value = (at: number) => {
    const exact =
      axis.kind === "log" ? axis.low * (axis.high / axis.low) ** at : axis.low + (axis.high - axis.low) * at;
    return Number(exact.toPrecision(4));
  };
  // beyond the ends nothing is cut by rounding
  return { low: low <= 0 ? axis.low : value(low), high: high >= 1 ? axis.high : value(high) };
}

/** Returns the places of a brush on an axis, from 0 to 1; null where it is beside the axis. */
export function brushPlaces(axis: PlacedAxis, brush: Brush): [number, number] | null {
  if ("texts" in brush) {
    const places = brush.texts.flatMap((text) => {
      const index = axis.texts.indexOf(text);
      return index < 0 ? [] : [index];
    });
    if (axis.kind !== "category" || places.length === 0) {
      return null;
    }
    const count = axis.texts.length;
    return [(Math.min(...places) + 0.1) / count, (Math.max(...places) + 0.9) / count];
  }
  if (axis.kind === "category" || axis.high <= axis.low) {
    return null;
  }
  const clamp = (value: number) =>
    axis.kind === "log" && value <= 0 ? 0 : Math.min(1, Math.max(0, placeOf(axis, value)));
  const [from, to] = [clamp(brush.low), clamp(brush.high)];
  return brush.high < axis.low || brush.low > axis.high || from > to ? null : [from, to];
}

/** Whether a brush selects a value. */
export function isBrushed(brush: Brush, value: AxisValue): boolean {
  if ("texts" in brush) {
    return value !== null && brush.texts.includes(axisText(value));
  }
  return isFiniteNumber(value) && brush.low <= value && value <= brush.high;
}

/** Returns the lines that all brushes select, by their places. Brushes of axes that are not there count not. */
export function brushedLines(axes: readonly ParallelAxis[], brushes: Brushes, count: number): number[] {
  const active = axes.flatMap((axis) => {
    const brush = brushes.get(axis.key);
    return brush ? [[axis, brush] as const] : [];
  });
  return Array.from({ length: count }, (_, line) => line).filter((line) =>
    active.every(([axis, brush]) => isBrushed(brush, axis.values[line] ?? null)),
  );
}

/** Returns the keys with one of them moved to a place. */
export function moveTo<T>(keys: readonly T[], key: T, place: number): T[] {
  const others = keys.filter((each) => each !== key);
  if (others.length === keys.length) {
    return [...keys];
  }
  others.splice(Math.max(0, Math.min(others.length, place)), 0, key);
  return others;
}
