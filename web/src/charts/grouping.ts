/** Curves of a group of runs as one curve: their mean, and how far they spread. */
import { at, type CurveSeries, type Range, unionOfX, valuesAt } from "./curve_series";

export type Spread = "range" | "deviation";

/**
 * Returns the mean of curves with a band: the lowest and the highest value, or one standard deviation (of the
 * sample). Between its points a curve is a straight line; outside of them and in gaps it does not count.
 */
export function groupCurves(
  members: readonly CurveSeries[],
  spread: Spread,
): Pick<CurveSeries, "x" | "y"> & { band: { low: Float64Array; high: Float64Array } } {
  const union = unionOfX(members);
  const values = members.map((member) => valuesAt(member, union));
  const columns = { x: [] as number[], y: [] as number[], low: [] as number[], high: [] as number[] };
  const add = (x: number, mean: number, low: number, high: number) => {
    columns.x.push(x);
    columns.y.push(mean);
    columns.low.push(low);
    columns.high.push(high);
  };
  for (const [i, x] of union.entries()) {
    const here = values.map((each) => at(each, i)).filter(Number.isFinite);
    if (i > 0 && !values.some((each) => Number.isFinite(at(each, i - 1)) && Number.isFinite(at(each, i)))) {
      add(x, Number.NaN, Number.NaN, Number.NaN); // no member has a line from the last x to this one
    }
    if (here.length > 0) {
      const mean = here.reduce((sum, value) => sum + value / here.length, 0);
      const [low, high] = spread === "range" ? extremes(here) : deviations(here, mean);
      add(x, mean, low, high);
    }
  }
  return {
    x: Float64Array.from(columns.x),
    y: Float64Array.from(columns.y),
    band: { low: Float64Array.from(columns.low), high: Float64Array.from(columns.high) },
  };
}

const extremes = (values: readonly number[]): Range => [Math.min(...values), Math.max(...values)];

function deviations(values: readonly number[], mean: number): Range {
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const deviation = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
  return [mean - deviation, mean + deviation];
}
