/** Where the log page takes its lines from: all ranks merged, or one stream by ranges of bytes. */
import { signal, type Signal } from "@preact/signals";
import { ApiError, isTemporary } from "@/api/client";
import { followOutput, listOutputStreams, readRaw, type StreamKey } from "@/api/runs";
import { MAX_LINE } from "@/text/ansi";
import { LineIndex, MergedLines } from "@/text/log_lines";

export interface LogLine {
  text: string;
  source?: string; // rank and stream, such as `0 stderr`
  hiddenBytes?: number;
}

export interface LogSource {
  /** Changes when there are more lines, or lines were read. */
  version: Signal<number>;
  /** A sentence about what is left out; "" for nothing. */
  notice: Signal<string>;
  /** The only stream with output, if a part of it is left out. */
  only: Signal<StreamKey | null>;
  /** undefined: still reading. */
  progress: Signal<{ read: number; total: number } | null>;
  error: Signal<unknown>;
  count: () => number;
  /** null: not there yet; it is being read. */
  line: (index: number) => LogLine | null;
  batches: () => AsyncGenerator<{ first: number; lines: string[] }>;
  close: () => void;
}

const RETRY_MS = 1000;
const TAIL_BYTES = 4 << 20; // of each stream, in the merged view
const MAX_STREAMS = 128;
const MAX_MERGED = 64 << 20; // characters
const BATCH = 20_000; // lines

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until the page is visible, or the signal aborts. */
async function untilVisible(signal: AbortSignal): Promise<void> {
  while (document.hidden && !signal.aborted) {
    await new Promise<void>((resolve) => {
      const once = { once: true };
      document.addEventListener("visibilitychange", () => resolve(), once);
      signal.addEventListener("abort", () => resolve(), once);
    });
  }
}

/** Whether to try again. The connection of a followed log breaks with an error of the browser. */
function isRepeated(error: unknown): boolean {
  return !(error instanceof ApiError) || isTemporary(error);
}

/** All streams in the order of arrival: the end of each, and then all that comes. */
export function openMerged(id: string): LogSource {
  let merged = new MergedLines();
  let cursors: Record<string, number> | null = null;
  const abort = new AbortController();
  const isClosed = () => abort.signal.aborted;
  // a tab in sight holds a connection; a hidden one gives it back, since a browser has few for a server
  let connection = new AbortController();
  const onVisibility = () => {
    if (document.hidden) {
      connection.abort();
    }
  };
  document.addEventListener("visibilitychange", onVisibility);
  const version = signal(0);
  const notice = signal("");
  const only = signal<StreamKey | null>(null);
  const error = signal<unknown>(null);
  const progress = signal<{ read: number; total: number } | null>(null);
  const begin = async () => {
    merged = new MergedLines();
    notice.value = "";
    const all = await listOutputStreams(id);
    const found: Record<string, number> = {};
    const last = all.slice(-MAX_STREAMS);
    const withOutput: StreamKey[] = [];
    for (const key of last) {
      const { length } = await readRaw(id, key, 0, 0);
      if (length > 0) {
        withOutput.push(key);
      }
      const from = Math.max(0, length - TAIL_BYTES);
      found[`${key.attempt}:${key.rank}:${key.stream}`] = from;
      if (from > 0) {
        notice.value = "Older output is left out here. Choose a stream to read all of it.";
      }
    }
    if (all.length > last.length) {
      notice.value = "Output of the first attempts is left out here. Choose a stream to read it.";
      for (const key of all.slice(0, -MAX_STREAMS)) {
        found[`${key.attempt}:${key.rank}:${key.stream}`] = Number.MAX_SAFE_INTEGER;
      }
    }
    only.value = notice.value !== "" && withOutput.length === 1 ? (withOutput[0] ?? null) : null;
    return found;
  };
  const follow = async () => {
    while (!isClosed()) {
      try {
        await untilVisible(abort.signal);
        connection = new AbortController();
        cursors ??= await begin();
        const positions = cursors;
        const isEnd = await followOutput(
          id,
          positions,
          (frame, bytes) => {
            const { attempt = "", rank = 0, stream = "", offset = 0 } = frame;
            positions[`${attempt}:${rank}:${stream}`] = offset + bytes.length;
            merged.append(`${rank} ${stream}`, bytes);
            error.value = null;
            version.value += 1;
          },
          AbortSignal.any([abort.signal, connection.signal]),
        );
        error.value = null;
        if (isEnd) {
          version.value += 1;
          return;
        }
      } catch (failure) {
        if (isClosed()) {
          return;
        }
        if (connection.signal.aborted) {
          continue;
        }
        error.value = failure;
        if (!isRepeated(failure)) {
          return;
        }
      }
      if (merged.size > MAX_MERGED) {
        cursors = null;
      }
      await pause(RETRY_MS);
    }
  };
  void follow();
  return {
    version,
    notice,
    only,
    progress,
    error,
    count: () => merged.lines.length,
    line: (index) => merged.lines[index] ?? null,
    async *batches() {
      const { lines } = merged;
      for (let first = 0; first < lines.length; first += BATCH) {
        yield { first, lines: lines.slice(first, first + BATCH).map((line) => line.text) };
        await pause(0);
      }
    },
    close: () => {
      document.removeEventListener("visibilitychange", onVisibility);
      abort.abort();
    },
  };
}

const RANGE_BYTES = 4 << 20;
const MAX_RANGES = 32; // in memory
const LONG_LINE_BYTES = MAX_LINE * 4;

/** One stream, of which all lines are indexed and the ranges read last are in memory. */
export function openStream(id: string, key: StreamKey, isLive: () => boolean): LogSource {
  const index = new LineIndex();
  const ranges = new Map<number, Uint8Array>(); // by offset; the order is that of use
  const begins: { offset: number; length: number }[] = [];
  const pending = new Set<number>();
  let isClosed = false;
  const version = signal(0);
  const error = signal<unknown>(null);
  const progress = signal<{ read: number; total: number } | null>({ read: 0, total: 0 });

  const keep = (offset: number, bytes: Uint8Array) => {
    ranges.delete(offset);
    ranges.set(offset, bytes);
    for (const oldest of ranges.keys()) {
      if (ranges.size <= MAX_RANGES) {
        break;
      }
      ranges.delete(oldest);
    }
  };
  const follow = async () => {
    while (!isClosed) {
      try {
        const wasLive = isLive();
        const { bytes, length } = await readRaw(id, key, index.length, RANGE_BYTES);
        error.value = null;
        if (bytes.length > 0) {
          begins.push({ offset: index.length, length: bytes.length });
          keep(index.length, bytes);
          index.append(bytes);
          version.value += 1;
        }
        progress.value = index.length < length ? { read: index.length, total: length } : null;
        if (index.length >= length) {
          if (!wasLive) {
            return;
          }
          await pause(RETRY_MS);
        }
      } catch (failure) {
        error.value = failure;
        if (!isRepeated(failure)) {
          return;
        }
        await pause(RETRY_MS);
      }
    }
  };
  void follow();

  const rangesOf = (begin: number, end: number) => {
    let low = 0;
    let high = begins.length;
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if ((begins[middle]?.offset ?? 0) <= begin) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const found: { offset: number; length: number }[] = [];
    for (let at = low; at < begins.length && (begins[at]?.offset ?? 0) < end; at += 1) {
      const each = begins[at];
      if (each && each.offset + each.length > begin) {
        found.push(each);
      }
    }
    return found;
  };
  const load = (range: { offset: number; length: number }) => {
    if (!pending.has(range.offset)) {
      pending.add(range.offset);
      readRaw(id, key, range.offset, range.length)
        .then(({ bytes }) => {
          keep(range.offset, bytes);
          version.value += 1;
        })
        .catch((failure: unknown) => {
          error.value = failure;
        })
        .finally(() => pending.delete(range.offset));
    }
  };
  /** null: not in memory; it is being read. */
  const bytesOf = (begin: number, end: number): Uint8Array | null => {
    const joined = new Uint8Array(end - begin);
    let isComplete = true;
    for (const range of rangesOf(begin, end)) {
      const bytes = ranges.get(range.offset);
      if (!bytes) {
        load(range);
        isComplete = false;
        continue;
      }
      const from = Math.max(begin, range.offset);
      joined.set(bytes.subarray(from - range.offset, end - range.offset), from - begin);
    }
    return isComplete ? joined : null;
  };
  return {
    version,
    notice: signal(""),
    only: signal(null),
    progress,
    error,
    count: () => index.count,
    line: (line) => {
      const [begin, end] = index.rangeOf(line);
      let hiddenBytes = Math.max(0, end - begin - LONG_LINE_BYTES);
      let from = begin;
      if (hiddenBytes > 0 && bytesOf(end - LONG_LINE_BYTES, end)?.includes(13)) {
        [from, hiddenBytes] = [end - LONG_LINE_BYTES, 0]; // a progress bar: its newest state
      }
      const bytes = bytesOf(from, Math.min(end, from + LONG_LINE_BYTES));
      return bytes === null ? null : { text: new TextDecoder().decode(bytes), hiddenBytes };
    },
    async *batches() {
      let rest = "";
      let first = 0;
      const decoder = new TextDecoder();
      for (const range of [...begins]) {
        let bytes = ranges.get(range.offset);
        bytes ??= (await readRaw(id, key, range.offset, range.length)).bytes;
        const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
        rest = lines.pop() ?? "";
        yield { first, lines };
        first += lines.length;
        await pause(0);
      }
      if (rest !== "") {
        yield { first, lines: [rest] };
      }
    },
    close: () => {
      isClosed = true;
    },
  };
}
