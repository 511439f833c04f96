/** Fetches the series of charts: many runs and metrics in one request, only new points of live runs. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, data, isTemporary, type Schemas } from "@/api/client";
import { type CurveBand, MANY_CURVES, type Range } from "./curve_series";

/** What a chart needs. `x`: `step`, `time`, `elapsed` or `metrics.NAME`. `range`: of x; null is all of it. */
export interface SeriesRequest {
  runs: readonly string[];
  names: readonly string[];
  x: string;
  range: Range | null;
  isLive: boolean;
}

/** A metric of a run. Without `isExact`, `y` is the mean of each bucket of x and `band` its extremes. */
export interface RunSeries {
  run: string;
  name: string;
  x: Float64Array;
  y: Float64Array;
  band?: CurveBand;
  total: number;
  isExact: boolean;
}

export type SeriesByRun = ReadonlyMap<string, RunSeries>;
type Answer = Schemas["CurvesOut"];
type Fetch = (request: SeriesRequest, since: string | null, signal: AbortSignal) => Promise<Answer>;

const MAX_BUCKETS = 1000;
const MAX_DRAWN = 40_000; // points of a metric of all runs
const MAX_NAMES = 100;
const MAX_SERIES = 1000; // of a request
const POLL_MS = 2000;
const RETRY_MS = 3000;

/** Returns the key of a metric of a run. Neither ids of runs nor this sign occur in the other. */
export const seriesKey = (run: string, name: string): string => `${run}\n${name}`;

/** Returns numbers. Those that are not finite are words, which a typed array reads by itself. */
const toNumbers = (values: readonly (number | string)[] = []): Float64Array =>
  new Float64Array(values as readonly number[]);

/** Returns what is requested of each series: no more than a chart of so many curves draws. */
export function seriesDetail(runs: number): { buckets: number; columns: string } {
  return {
    buckets: Math.min(MAX_BUCKETS, Math.floor(MAX_DRAWN / Math.max(1, runs))),
    columns: runs > MANY_CURVES ? "mean" : "mean,min,max",
  };
}

function joined(before: Float64Array, after: Float64Array): Float64Array {
  const all = new Float64Array(before.length + after.length);
  all.set(before);
  all.set(after, before.length);
  return all;
}

/** Adds an answer to the series that are known: later points at the end, or all of them again. */
export function mergeAnswer(known: SeriesByRun, answer: Answer): SeriesByRun {
  if (answer.series.length === 0) {
    return known;
  }
  const merged = new Map(known);
  for (const curve of answer.series) {
    const key = seriesKey(curve.run, curve.name);
    const x = new Float64Array(curve.x);
    const y = toNumbers(curve.exact ? curve.values : curve.mean);
    const band =
      curve.min && curve.max ? { low: toNumbers(curve.min), high: toNumbers(curve.max) } : undefined;
    const base = { run: curve.run, name: curve.name, total: curve.total, isExact: curve.exact };
    const before = curve.reset ? undefined : merged.get(key);
    if (curve.total === 0) {
      merged.delete(key);
    } else if (!before || before.x.length === 0) {
      merged.set(key, { ...base, x, y, ...(band && { band }) });
    } else {
      const isBanded = before.band !== undefined || band !== undefined;
      const [old, added] = [before.band ?? { low: before.y, high: before.y }, band ?? { low: y, high: y }];
      merged.set(key, {
        ...base,
        isExact: before.isExact && curve.exact,
        x: joined(before.x, x),
        y: joined(before.y, y),
        ...(isBanded && { band: { low: joined(old.low, added.low), high: joined(old.high, added.high) } }),
      });
    }
  }
  return merged;
}

/** Returns whether appended points have made a series much longer than what the server would send in full. */
export function isOvergrown(known: SeriesByRun, buckets: number): boolean {
  return [...known.values()].some((series) => series.x.length > 3 * buckets);
}

/** Returns requests of at most as many series as the server accepts in one. */
export function splitRequest(request: SeriesRequest): SeriesRequest[] {
  const size = Math.max(1, Math.min(MAX_NAMES, Math.floor(MAX_SERIES / Math.max(1, request.runs.length))));
  const parts: SeriesRequest[] = [];
  for (let first = 0; first < request.names.length; first += size) {
    parts.push({ ...request, names: request.names.slice(first, first + size) });
  }
  return parts;
}

const fetchSeries: Fetch = (request, since, signal) =>
  data(
    api.GET("/api/v1/series", {
      params: {
        query: {
          run: [...request.runs],
          name: [...request.names],
          x: request.x,
          ...seriesDetail(request.runs.length),
          ...(request.range && { begin: request.range[0], end: request.range[1] }),
          ...(since !== null && { since }),
        },
      },
      signal,
    }),
  );

/** Reads the series of a request, and follows them while its runs are live. `stop` cancels what is under way. */
export class SeriesFollower {
  private readonly abort = new AbortController();
  private readonly cursors = new Map<SeriesRequest, string>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private known: SeriesByRun = new Map();

  constructor(
    private readonly request: SeriesRequest,
    private readonly onChange: (series: SeriesByRun, error: unknown) => void,
    private readonly fetch: Fetch = fetchSeries,
    private readonly pollMs = POLL_MS,
  ) {
    void this.read(splitRequest(request));
  }

  stop(): void {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  private async read(parts: readonly SeriesRequest[]): Promise<void> {
    let wait = this.request.isLive ? this.pollMs : null;
    try {
      if (isOvergrown(this.known, seriesDetail(this.request.runs.length).buckets)) {
        this.cursors.clear();
        this.known = new Map();
      }
      let known = this.known;
      for (const part of parts) {
        const answer = await this.fetch(part, this.cursors.get(part) ?? null, this.abort.signal);
        this.cursors.set(part, answer.cursor);
        known = mergeAnswer(known, answer);
        this.known = known;
      }
      if (!this.abort.signal.aborted) {
        this.onChange(known, null);
      }
    } catch (error) {
      if (this.abort.signal.aborted) {
        return;
      }
      this.onChange(this.known, error);
      if (isTemporary(error)) {
        wait = RETRY_MS;
      }
    }
    if (wait !== null && !this.abort.signal.aborted) {
      this.timer = setTimeout(() => void this.read(parts), wait);
    }
  }
}

interface SeriesState {
  series: SeriesByRun;
  error: unknown;
  isLoading: boolean;
}

const NO_SERIES: SeriesByRun = new Map();

/** The series of a request. Those of the last request stay until the new ones are there. */
export function useSeries(request: SeriesRequest): SeriesState {
  const [state, setState] = useState<SeriesState>({ series: NO_SERIES, error: null, isLoading: true });
  const id = JSON.stringify(request);
  const wanted = useMemo(() => request, [id]);
  useEffect(() => {
    if (wanted.runs.length === 0 || wanted.names.length === 0) {
      setState({ series: NO_SERIES, error: null, isLoading: false });
      return;
    }
    setState((last) => ({ ...last, isLoading: true }));
    const follower = new SeriesFollower(wanted, (series, error) =>
      setState({ series, error, isLoading: false }),
    );
    return () => follower.stop();
  }, [wanted]);
  return state;
}
