/** Curves of a group of runs as one curve: their mean, and how far they spread. */
import { at, type CurveSeries, unionOfX, valuesAt } from "./curve_series";

export type Spread = "range" | "deviation";

/**
 * Returns the mean of curves with a band: the lowest and the highest value, or one standard deviation (of the
 * sample). Between its points a curve is a straight line; outside of them and in gaps it does not count.
 */
export function groupCurves(
  members: readonly CurveSeries[],
  spread: Spread,
): Pick<CurveSeries, "x" | "y"> & { band: { low: Float64Array; high: Float64Array } } {
  const x = unionOfX(members);
  const values = members.map((member) => valuesAt(member, x));
  const y = new Float64Array(x.length).fill(Number.NaN);
  const low = y.slice();
  const high = y.slice();
  for (let i = 0; i < x.length; i += 1) {
    const here = values.map((each) => at(each, i)).filter(Number.isFinite);
    if (here.length === 0) {
      continue;
    }
    const mean = here.reduce((sum, value) => sum + value / here.length, 0);
    y[i] = mean;
    if (spread === "range") {
      low[i] = Math.min(...here);
      high[i] = Math.max(...here);
    } else {
      const squares = here.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      const deviation = here.length > 1 ? Math.sqrt(squares / (here.length - 1)) : 0;
      low[i] = mean - deviation;
      high[i] = mean + deviation;
    }
  }
  return { x, y, band: { low, high } };
}
