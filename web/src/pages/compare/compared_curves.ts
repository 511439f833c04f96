/** The curves of a panel: one for each run, or one for each group of runs. */
import type { CurveSeries } from "@/charts/curve_series";
import { groupCurves, type Spread } from "@/charts/grouping";
import { type SeriesByRun, seriesKey } from "@/charts/series_data";
import type { Run } from "./columns";

/** A line of the legend. `members`: the places of its runs. */
export interface CurveGroup {
  key: string;
  label: string;
  members: readonly number[];
}

/** Returns the curves of a metric of runs, by their ids; the colour of a curve is the place of its group. */
export function comparedCurves(
  name: string,
  series: SeriesByRun,
  runs: readonly string[],
  groups: readonly CurveGroup[],
  spread: Spread,
): CurveSeries[] {
  return groups.flatMap(({ key, label, members }, colour) => {
    const curves = members.flatMap((place) => {
      const found = series.get(seriesKey(runs[place] ?? "", name));
      return found
        ? [{ key, label, colour, x: found.x, y: found.y, ...(found.band && { band: found.band }) }]
        : [];
    });
    const [first] = curves;
    if (!first) {
      return [];
    }
    return [curves.length === 1 ? first : { key, label, colour, ...groupCurves(curves, spread) }];
  });
}

/** Returns how many of the runs have logged each metric. */
export function countMetrics(runs: readonly Run[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const run of runs) {
    for (const name of Object.keys(run.latest ?? {})) {
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  return counts;
}
