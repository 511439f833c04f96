/** Places of values on an axis from 0 to 1: a number by its size, a text by its place among all texts. */
import { formatTick, roundTicks } from "@/charts/axis_format";
import { type Column, formatValue, isNumeric, type Value } from "./columns";

export interface AxisScale {
  place: (value: Value) => number | null;
  ticks: { at: number; text: string }[];
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
