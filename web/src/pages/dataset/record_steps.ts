/** The geometry of the picture of results over time. */

export interface Point {
  at: number; // milliseconds
  value: number;
}

export interface Frame {
  low: number;
  high: number;
  begin: number;
  end: number;
}

/** Returns the ranges of both axes, with a margin around the values; null without a point. */
export function frameOf(points: readonly Point[]): Frame | null {
  const finite = points.filter((point) => Number.isFinite(point.value));
  if (finite.length === 0) {
    return null;
  }
  const values = finite.map((point) => point.value);
  const times = finite.map((point) => point.at);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [begin, end] = [Math.min(...times), Math.max(...times)];
  const margin = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  const time = (end - begin) * 0.02 || 60_000;
  return { low: low - margin, high: high + margin, begin: begin - time, end: end + time };
}

/** Returns round values between two bounds, about `count` of them. */
export function niceTicks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? rough;
  const ticks: number[] = [];
  for (let index = Math.ceil(low / step); index * step <= high; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** Returns the path of a line that holds each record until the next one. */
export function stepPath(points: readonly { x: number; y: number }[], right: number): string {
  return points
    .map((point, index) => (index === 0 ? `M${point.x},${point.y}` : `H${point.x}V${point.y}`))
    .concat(points.length > 0 ? `H${right}` : [])
    .join("");
}
