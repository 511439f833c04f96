/** The rows of a Gantt chart, and where one is in time: pure arithmetic. */

/** Something that took a while. `colour`: a number. `isLight`: drawn in less than full height. */
export interface GanttBar {
  key: string; // of what it belongs to: bars with the same key stand out together
  from: number; // unix seconds
  to: number;
  colour: number;
  label: string; // short, shown where there is room
  title: string; // all of it
  isLight?: boolean;
}

export interface GanttRow {
  label: string;
  bars: readonly GanttBar[]; // in the order of `from`
}

export type Span = readonly [from: number, to: number];

/** Returns the time from the first begin to the last end; null without bars. */
export function spanOf(rows: readonly GanttRow[]): Span | null {
  let [low, high] = [Infinity, -Infinity];
  for (const row of rows) {
    for (const bar of row.bars) {
      low = Math.min(low, bar.from);
      high = Math.max(high, bar.to);
    }
  }
  return low <= high ? [low, Math.max(high, low + 1e-3)] : null;
}

/** Returns the range around a place (0 to 1 of the range) after a zoom, within the whole span. */
export function zoomSpan(range: Span, whole: Span, factor: number, place: number): Span | null {
  const width = (range[1] - range[0]) * factor;
  if (width >= whole[1] - whole[0]) {
    return null;
  }
  const middle = range[0] + place * (range[1] - range[0]);
  return clampSpan([middle - place * width, middle + (1 - place) * width], whole);
}

/** Moves a range by a share of its width, within the whole span. */
export function moveSpan(range: Span, whole: Span, share: number): Span {
  const by = share * (range[1] - range[0]);
  return clampSpan([range[0] + by, range[1] + by], whole);
}

function clampSpan([from, to]: Span, whole: Span): Span {
  const by = Math.max(whole[0] - from, 0) + Math.min(whole[1] - to, 0);
  return [from + by, to + by];
}

/** Returns the place of the first bar that may end after `time`, for bars that begin in order. */
export function firstBar(bars: readonly GanttBar[], time: number, longest: number): number {
  let low = 0;
  let high = bars.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((bars[middle]?.from ?? 0) < time - longest) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** Returns the bar at a time, the one that began last. */
export function barAt(bars: readonly GanttBar[], time: number, slack: number): GanttBar | null {
  let found: GanttBar | null = null;
  for (const bar of bars) {
    if (bar.from - slack > time) {
      break;
    }
    if (bar.to + slack >= time) {
      found = bar;
    }
  }
  return found;
}

/** Puts bars that overlap into lanes of their own: as few as there are at a time. */
export function packLanes(label: string, bars: readonly GanttBar[]): GanttRow[] {
  const lanes: GanttBar[][] = [];
  for (const bar of [...bars].sort((one, two) => one.from - two.from)) {
    const lane = lanes.find((each) => (each.at(-1)?.to ?? 0) <= bar.from);
    if (lane) {
      lane.push(bar);
    } else {
      lanes.push([bar]);
    }
  }
  return lanes.map((each, index) => ({ label: index === 0 ? label : "", bars: each }));
}

/** Returns the busy share of each row, 0 to 1, of the span. Overlapping bars count once. */
export function busyShare(row: GanttRow, [from, to]: Span): number {
  let busy = 0;
  let until = from;
  for (const bar of row.bars) {
    busy += Math.max(0, Math.min(bar.to, to) - Math.max(until, bar.from));
    until = Math.max(until, bar.to);
  }
  return to > from ? busy / (to - from) : 0;
}
