import { expect, it } from "vitest";
import type { Schemas } from "@/api/client";
import {
  mergeAnswer,
  type SeriesByRun,
  seriesDetail,
  SeriesFollower,
  seriesKey,
  splitRequest,
} from "./series_data";

type Curve = Schemas["CurveOut"];
const exact = (x: number[], values: Curve["values"], reset = true): Curve => ({
  run: "run-1",
  name: "loss",
  total: 100,
  count: x.length,
  exact: true,
  reset,
  sampled: false,
  x,
  values: values ?? [],
});
const answer = (...series: Curve[]) => ({ series, buckets: 1000, cursor: "next", unavailable: [] });
const KEY = seriesKey("run-1", "loss");
const REQUEST = { runs: ["run-1"], names: ["loss"], x: "step", range: null, isLive: false };

it("appends later points, and replaces all after a reset", () => {
  const first = mergeAnswer(new Map(), answer(exact([0, 1], [3, "NaN"])));
  const second = mergeAnswer(first, answer(exact([2], ["Infinity"], false)));
  expect([...(second.get(KEY)?.x ?? [])]).toEqual([0, 1, 2]);
  expect([...(second.get(KEY)?.y ?? [])]).toEqual([3, Number.NaN, Number.POSITIVE_INFINITY]);
  const third = mergeAnswer(second, answer(exact([0], [9])));
  expect([...(third.get(KEY)?.y ?? [])]).toEqual([9]);
});

it("shows the extremes of buckets as a band, also after exact points", () => {
  const first = mergeAnswer(new Map(), answer(exact([0], [5])));
  const buckets = { ...exact([1], undefined, false), exact: false, mean: [2], min: [1], max: [4] };
  const series = mergeAnswer(first, answer(buckets)).get(KEY);
  expect([...(series?.y ?? [])]).toEqual([5, 2]);
  expect([...(series?.band?.low ?? [])]).toEqual([5, 1]);
  expect([...(series?.band?.high ?? [])]).toEqual([5, 4]);
  expect(series?.isExact).toBe(false);
});

it("requests of many runs only what their chart draws", () => {
  expect(seriesDetail(1)).toEqual({ buckets: 1000, columns: "mean,min,max" });
  expect(seriesDetail(100)).toEqual({ buckets: 400, columns: "mean" });
  const means = { ...exact([1], undefined), exact: false, mean: [2, "NaN" as const] };
  const series = mergeAnswer(new Map(), answer(means)).get(KEY);
  expect([...(series?.y ?? [])]).toEqual([2, Number.NaN]);
  expect(series?.band).toBeUndefined();
});

it("drops a series without points", () => {
  const first = mergeAnswer(new Map(), answer(exact([0], [5])));
  expect(mergeAnswer(first, answer({ ...exact([], []), total: 0 })).size).toBe(0);
});

it("keeps a request within the limits of the server", () => {
  const runs = Array.from({ length: 100 }, (_, i) => `run-${i}`);
  const names = Array.from({ length: 25 }, (_, i) => `metric-${i}`);
  const parts = splitRequest({ ...REQUEST, runs, names });
  expect(parts.map((part) => part.names.length)).toEqual([10, 10, 5]);
  expect(parts.flatMap((part) => part.names)).toEqual(names);
});

it("follows a live run with the cursor of the last answer", async () => {
  const cursors: (string | null)[] = [];
  const series = await new Promise<SeriesByRun>((resolve) => {
    const follower: SeriesFollower = new SeriesFollower(
      { ...REQUEST, isLive: true },
      (found) => {
        if (found.get(KEY)?.x.length === 2) {
          follower.stop();
          resolve(found);
        }
      },
      (_, since) => {
        cursors.push(since);
        return Promise.resolve(answer(exact([cursors.length - 1], [1], since === null)));
      },
      1,
    );
  });
  expect([...(series.get(KEY)?.x ?? [])]).toEqual([0, 1]);
  expect(cursors).toEqual([null, "next"]);
});

it("cancels the request and reports nothing once it is stopped", async () => {
  const signals: AbortSignal[] = [];
  const reports: unknown[] = [];
  let finish: (value: ReturnType<typeof answer>) => void = () => undefined;
  const fetched = new Promise<ReturnType<typeof answer>>((resolve) => (finish = resolve));
  const follower = new SeriesFollower(
    REQUEST,
    (found) => reports.push(found),
    (_, __, signal) => {
      signals.push(signal);
      return fetched;
    },
  );
  follower.stop();
  finish(answer(exact([0], [1])));
  await fetched;
  await Promise.resolve();
  expect(signals.map((signal) => signal.aborted)).toEqual([true]);
  expect(reports).toEqual([]);
});
