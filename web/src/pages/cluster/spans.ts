/** Places the spans of a timeline in rows of nodes or queues, and in lanes where they overlap. */
import type { Schemas } from "@/api/client";

export type Span = Schemas["SpanOut"];
export type Occurrence = Schemas["OccurrenceOut"];

/** A bar from `left` to `left + width`, parts of the shown time. */
export interface Bar {
  key: string;
  span: Span;
  left: number;
  width: number;
  lane: number;
}

export interface Band {
  key: string;
  occurrence: Occurrence;
  left: number;
  width: number;
}

export interface TimelineRow {
  name: string;
  bars: readonly Bar[];
  bands: readonly Band[]; // reservations
  lanes: number;
}

export interface Range {
  since: number; // milliseconds since 1970, as `until` and `now`
  until: number;
  now: number;
}

const MIN_WIDTH = 0.002; // of a span too short to be seen

/** Returns a row for each name of `names`, and for each other name that a span or reservation has. */
export function placeSpans(
  names: readonly string[],
  spans: readonly Span[],
  occurrences: readonly Occurrence[],
  by: "node" | "queue",
  range: Range,
): TimelineRow[] {
  const bars = new Map<string, Bar[]>(names.map((name) => [name, []]));
  const bands = new Map<string, Band[]>();
  for (const span of spans) {
    const place = placeIn(range, span.start_at, span.end_at);
    if (place === null) {
      continue;
    }
    for (const name of by === "node" ? span.nodes : [span.queue]) {
      append(bars, name, { key: `${span.run} ${span.attempt ?? ""}`, span, lane: 0, ...place });
    }
  }
  for (const occurrence of occurrences) {
    const place = placeIn(range, occurrence.start_at, occurrence.end_at);
    if (place === null) {
      continue;
    }
    const holders = by === "node" ? occurrence.nodes : occurrence.queue === null ? [] : [occurrence.queue];
    for (const name of holders) {
      append(bands, name, { key: `${occurrence.reservation} ${occurrence.start_at}`, occurrence, ...place });
    }
  }
  for (const name of bands.keys()) {
    if (!bars.has(name)) {
      bars.set(name, []);
    }
  }
  return [...bars].map(([name, own]) => {
    const laned = toLanes(own);
    const lanes = Math.max(1, ...laned.map((bar) => bar.lane + 1));
    return { name, bars: laned, bands: bands.get(name) ?? [], lanes };
  });
}

/** Gives each bar the first lane that is free at its start. */
function toLanes(bars: readonly Bar[]): Bar[] {
  const ends: number[] = [];
  return [...bars]
    .sort((one, two) => one.left - two.left || one.key.localeCompare(two.key))
    .map((bar) => {
      const free = ends.findIndex((end) => end <= bar.left + 1e-9);
      const lane = free < 0 ? ends.length : free;
      ends[lane] = bar.left + bar.width;
      return { ...bar, lane };
    });
}

function placeIn(range: Range, start: string, end: string | null): { left: number; width: number } | null {
  const from = Math.max(Date.parse(start), range.since);
  const to = Math.min(end === null ? Math.max(range.now, from) : Date.parse(end), range.until);
  if (to < range.since || from > range.until) {
    return null;
  }
  const length = range.until - range.since;
  const left = (from - range.since) / length;
  return { left, width: Math.max(MIN_WIDTH, Math.min((to - from) / length, 1 - left)) };
}

function append<T>(map: Map<string, T[]>, name: string, item: T): void {
  const found = map.get(name);
  if (found) {
    found.push(item);
  } else {
    map.set(name, [item]);
  }
}

/** Returns whole hours or days within the range, at most about twelve: for the axis. */
export function axisTimes(range: Range): number[] {
  const hours = (range.until - range.since) / 3_600_000;
  const step = [1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720].find((each) => hours / each <= 12) ?? 1440;
  const first = new Date(range.since);
  first.setMinutes(0, 0, 0);
  first.setHours(Math.floor(first.getHours() / step) * step);
  const times: number[] = [];
  for (let at = first; at.getTime() < range.until; at.setHours(at.getHours() + step)) {
    if (at.getTime() >= range.since) {
      times.push(at.getTime());
    }
  }
  return times;
}
