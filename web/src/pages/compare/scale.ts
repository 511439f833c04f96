/** Places of values on an axis from 0 to 1: a number by its size, a text by its place among all texts. */
import { formatTick } from "@/charts/axis_format";
import { type Column, formatValue, isNumeric, type Value } from "./columns";

export interface AxisScale {
  place: (value: Value) => number | null;
  ticks: { at: number; text: string }[];
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

/** Returns the axis of a column. Values that are not finite have no place on it. */
export function makeScale(column: Column): AxisScale {
  if (!isNumeric(column)) {
    const texts = [...new Set(column.values.filter((value) => value !== null))].map(formatValue).sort();
    const at = (index: number) => (texts.length > 1 ? index / (texts.length - 1) : 0.5);
    return {
      place: (value) => (value === null ? null : at(texts.indexOf(formatValue(value)))),
      ticks: texts.map((text, index) => ({ at: at(index), text })),
    };
  }
  const numbers = column.values.filter(
    (value): value is number => typeof value === "number" && Number.isFinite(value),
  );
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (numbers.length === 0 || low === high) {
    const isShown = (value: Value) => typeof value === "number" && Number.isFinite(value);
    return {
      place: (value) => (isShown(value) ? 0.5 : null),
      ticks: numbers.length === 0 ? [] : [{ at: 0.5, text: formatTick(low) }],
    };
  }
  const place = (value: number) => (value - low) / (high - low);
  return {
    place: (value) => (typeof value === "number" && Number.isFinite(value) ? place(value) : null),
    ticks: roundTicks(low, high, 5).map((tick) => ({ at: place(tick), text: formatTick(tick) })),
  };
}
