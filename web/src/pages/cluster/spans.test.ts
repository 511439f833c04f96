import { expect, test } from "vitest";
import { axisTimes, placeSpans, type Occurrence, type Range, type Span } from "./spans";

const HOUR = 3_600_000;
const at = (hour: number) => new Date(hour * HOUR).toISOString();
const RANGE: Range = { since: 10 * HOUR, until: 20 * HOUR, now: 15 * HOUR };

const span = (run: string, start: number, end: number | null, rest: Partial<Span> = {}): Span => ({
  run,
  name: run,
  user: "ann",
  queue: "vision",
  attempt: 1,
  state: "ended",
  phase: "succeeded",
  nodes: ["a"],
  gpu_milli: [1000],
  total_gpu_milli: 1000,
  start_at: at(start),
  end_at: end === null ? null : at(end),
  ...rest,
});

test("spans that overlap are in different lanes, and are cut at the ends of the time", () => {
  const spans = [span("r1", 8, 12), span("r2", 11, 13), span("r3", 12, 25), span("old", 1, 9)];
  const [row] = placeSpans(["a"], spans, [], "node", RANGE);
  expect(row?.bars.map((bar) => [bar.key, bar.left, bar.width, bar.lane])).toEqual([
    ["r1 1", 0, 0.2, 0],
    ["r2 1", 0.1, 0.2, 1],
    ["r3 1", 0.2, 0.8, 0],
  ]);
  expect(row?.lanes).toBe(2);
});

test("a run on several nodes is in each of their rows, also on a node that is gone", () => {
  const rows = placeSpans(["a", "b"], [span("r", 11, 12, { nodes: ["a", "gone"] })], [], "node", RANGE);
  expect(rows.map((row) => [row.name, row.bars.length])).toEqual([
    ["a", 1],
    ["b", 0],
    ["gone", 1],
  ]);
});

test("a span without a known end reaches until now; by queue, a promise needs no node", () => {
  const spans = [
    span("r", 14, null, { state: "live" }),
    span("p", 16, 18, { state: "promised", nodes: [], attempt: null }),
  ];
  const [row] = placeSpans(["vision"], spans, [], "queue", RANGE);
  expect(row?.bars[0]?.width).toBeCloseTo(0.1);
  expect(row?.bars[1]?.width).toBeCloseTo(0.2);
});

test("reservations are bands of their nodes or queue", () => {
  const occurrence: Occurrence = {
    reservation: "exam",
    start_at: at(12),
    end_at: at(14),
    users: [],
    queue: "vision",
    nodes: ["b"],
    repeats: false,
    created_by: "ann",
  };
  expect(placeSpans(["a"], [], [occurrence], "node", RANGE).map((row) => row.bands.length)).toEqual([0, 1]);
  expect(placeSpans([], [], [occurrence], "queue", RANGE)[0]?.bands[0]?.left).toBeCloseTo(0.2);
});

test("the axis has at most about twelve marks, inside the time", () => {
  for (const hours of [2, 12, 48, 336]) {
    const range = { since: 0, until: hours * HOUR, now: 0 };
    const times = axisTimes(range);
    expect(times.length).toBeGreaterThan(0);
    expect(times.length).toBeLessThan(15);
    expect(times.every((time) => time >= range.since && time < range.until)).toBe(true);
  }
});
