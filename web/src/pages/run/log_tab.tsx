import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useSearchParams } from "wouter-preact";
import { isFinal, listOutputStreams, type Run, type StreamKey } from "@/api/runs";
import { usePolled } from "@/api/polling";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { plainText } from "@/text/ansi";
import { formatBytes } from "@/text/format";
import { isErrorLine } from "@/text/log_lines";
import { mayNamePlace } from "@/text/traceback";
import { useCodeFiles } from "./code_files";
import { Line } from "./log_line";
import { openMerged, openStream, type LogSource } from "./log_source";
import styles from "./log_tab.module.css";

const PAGE = 100_000; // lines in the scrolled list; more are on other pages
const ROW = 19;
const MAX_MATCHES = 10_000;
const POLL_MS = 5000;

/** The log of a run: all ranks merged, or one stream. */
export function LogTab({ run }: { run: Run }) {
  const [search, setSearch] = useSearchParams();
  const chosen = search.get("stream") ?? "";
  const streams = usePolled(
    `streams ${run.id}`,
    () => listOutputStreams(run.id),
    () => (isFinal(run) ? null : POLL_MS),
  );
  const key = useMemo(() => parseKey(run, chosen), [run.id, chosen]);
  const live = useRef(true);
  live.current = !isFinal(run);
  const [source, setSource] = useState<LogSource | null>(null);
  // of an ended run with one long stream, all of it is shown
  const only = isFinal(run) && key === null ? (source?.only.value ?? null) : null;
  useEffect(() => {
    if (only !== null) {
      choose(textOf(only));
    }
  }, [only]);
  useEffect(() => {
    const opened = key ? openStream(run.id, key, () => live.current) : openMerged(run.id);
    setSource(opened);
    return () => opened.close();
  }, [run.id, key]);

  const choose = (value: string) =>
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === "") {
          next.delete("stream");
        } else {
          next.set("stream", value);
        }
        return next;
      },
      { replace: true },
    );
  return (
    <LogView
      key={chosen}
      run={run}
      source={source}
      picker={
        <select
          aria-label="stream"
          value={chosen}
          onChange={(event) => choose(event.currentTarget.value)}
          class={styles["select"]}
        >
          <option value="">all ranks, merged</option>
          {streams.data?.map((each) => (
            <option key={textOf(each)} value={textOf(each)}>
              attempt {attemptNumber(each)} · rank {each.rank} · {each.stream}
            </option>
          ))}
        </select>
      }
      download={key}
    />
  );
}

const attemptNumber = (key: StreamKey) => key.attempt.slice(key.attempt.lastIndexOf(".") + 1);
const textOf = (key: StreamKey) => `${attemptNumber(key)}.${key.rank}.${key.stream}`;

function parseKey(run: Run, text: string): StreamKey | null {
  const match = /^(\d{1,9})\.(\d{1,6})\.(stdout|stderr)$/.exec(text);
  return match
    ? { attempt: `${run.id}.${match[1]}`, rank: Number(match[2]), stream: match[3] ?? "stdout" }
    : null;
}

/** The address of the whole text: of a stream, or of stdout of rank 0. */
function downloadAddress(run: Run, key: StreamKey | null): string {
  const id = encodeURIComponent(run.id);
  return key === null
    ? `/api/v1/runs/${id}/log`
    : `/api/v1/runs/${id}/log?stream=${key.stream}&rank=${key.rank}`;
}

type Test = (line: string) => boolean;

/** Text that is part of a line, whatever its case; or a regular expression between slashes. */
function toTest(query: string): { test: Test; mark: RegExp } | null {
  if (query === "") {
    return null;
  }
  const body = /^\/(.+)\/$/.exec(query)?.[1];
  let source = query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  try {
    source = body === undefined ? source : new RegExp(body).source;
  } catch {
    // it is no regular expression: its characters are what is looked for
  }
  const mark = new RegExp(source, "gi");
  return { test: (line) => line.search(mark) >= 0, mark };
}

function LogView({
  run,
  source,
  picker,
  download,
}: {
  run: Run;
  source: LogSource | null;
  picker: preact.ComponentChild;
  download: StreamKey | null;
}) {
  const scroller = useRef<HTMLDivElement>(null);
  const scrolledTo = useRef({ top: 0, height: 0 });
  const [wraps, setWraps] = useState(false);
  const [follows, setFollows] = useState(true); // of an ended run, its end is shown first
  const [pageNumber, setPage] = useState<number | null>(null); // null: the last one
  const [query, setQuery] = useState("");
  const [matches, setMatches] = useState<number[]>([]);
  const [current, setCurrent] = useState<number | null>(null); // line
  const [status, setStatus] = useState("");

  const version = source?.version.value ?? 0;
  const count = source?.count() ?? 0;
  const lastPage = Math.max(0, Math.ceil(count / PAGE) - 1);
  const page = Math.min(pageNumber ?? lastPage, lastPage);
  const first = page * PAGE;
  const shown = Math.min(PAGE, count - first);
  const rows = useVirtualizer({
    count: shown,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 20,
  });
  useEffect(() => {
    if (follows && shown > 0) {
      setPage(null);
      rows.scrollToIndex(shown - 1, { align: "end" });
    }
  }, [version, follows, shown]);
  useEffect(() => rows.measure(), [wraps]);

  const find = useMemo(() => toTest(query), [query]);
  const namesPlace = rows
    .getVirtualItems()
    .some((item) => mayNamePlace(plainText(source?.line(first + item.index)?.text ?? "")));
  const files = useCodeFiles(run, namesPlace);
  const goTo = (line: number) => {
    setFollows(false);
    setCurrent(line);
    setPage(Math.floor(line / PAGE));
    requestAnimationFrame(() => rows.scrollToIndex(line % PAGE, { align: "center" }));
  };
  const scan = async (test: Test, limit: number): Promise<number[]> => {
    const found: number[] = [];
    for await (const { first: begin, lines } of source?.batches() ?? []) {
      for (const [index, line] of lines.entries()) {
        if (test(plainText(line)) && found.push(begin + index) >= limit) {
          return found;
        }
      }
    }
    return found;
  };
  const isPartial = (source?.notice.value ?? "") !== "";
  const run_search = async (backwards: boolean) => {
    if (!find) {
      return;
    }
    setStatus("searching…");
    const found = await scan(find.test, MAX_MATCHES);
    setMatches(found);
    if (found.length === 0) {
      setStatus(isPartial ? "no match in what is shown" : "no match");
      return;
    }
    const from = current ?? -1;
    const next = backwards
      ? (found.findLast((line) => line < from) ?? found.at(-1))
      : (found.find((line) => line > from) ?? found[0]);
    goTo(next ?? 0);
    const position = found.indexOf(next ?? 0) + 1;
    setStatus(`${position} of ${found.length}${found.length === MAX_MATCHES ? "+" : ""}`);
  };
  const jumpToError = async () => {
    setStatus("searching…");
    const [line] = await scan(isErrorLine, 1);
    setStatus(line !== undefined ? "" : isPartial ? "no error in what is shown" : "no error in it");
    if (line !== undefined) {
      goTo(line);
    }
  };

  if (!source) {
    return <Loading />;
  }
  const isReading = source.progress.value;
  return (
    <section class={styles["log"]} aria-label="log">
      <div class={styles["bar"]}>
        {picker}
        <form
          role="search"
          class={styles["search"]}
          onSubmit={(event) => {
            event.preventDefault();
            void run_search(false);
          }}
        >
          <input
            type="search"
            aria-label="search the log"
            placeholder="Search, or /regular expression/"
            value={query}
            onInput={(event) => {
              setQuery(event.currentTarget.value);
              setMatches([]);
              setStatus("");
            }}
          />
          {matches.length > 1 && (
            <Button kind="quiet" aria-label="previous match" onClick={() => void run_search(true)}>
              ↑
            </Button>
          )}
          {matches.length > 1 && (
            <Button kind="quiet" type="submit" aria-label="next match">
              ↓
            </Button>
          )}
          <span role="status">{status}</span>
        </form>
        <Button onClick={() => void jumpToError()}>First error</Button>
        <label>
          <input type="checkbox" checked={wraps} onChange={() => setWraps(!wraps)} /> Wrap
        </label>
        {!isFinal(run) && (
          <label>
            <input type="checkbox" checked={follows} onChange={() => setFollows(!follows)} /> Follow
          </label>
        )}
        <a href={downloadAddress(run, download)} download={fileName(run, download)}>
          Download
        </a>
      </div>
      {source.error.value !== null && source.error.value !== undefined && (
        <ErrorNotice error={source.error.value} />
      )}
      {(source.notice.value !== "" || isReading !== null || lastPage > 0) && (
        <div class={styles["note"]}>
          {source.notice.value}
          {isReading !== null && isReading.total > 0 && (
            <span>
              reading: {formatBytes(isReading.read)} of {formatBytes(isReading.total)}
            </span>
          )}
          {lastPage > 0 && (
            <span>
              lines {first + 1}–{first + shown} of {count}{" "}
              <Button
                kind="quiet"
                disabled={page === 0}
                onClick={() => {
                  setFollows(false);
                  setPage(page - 1);
                }}
              >
                Earlier
              </Button>
              <Button kind="quiet" disabled={page === lastPage} onClick={() => setPage(page + 1)}>
                Later
              </Button>
            </span>
          )}
        </div>
      )}
      {count === 0 && isReading === null ? (
        <Empty title={isFinal(run) ? "The run wrote no output" : "No output yet"} />
      ) : (
        <div
          ref={scroller}
          class={`${styles["lines"]} ${wraps ? styles["wrapped"] : ""}`}
          tabIndex={0}
          role="log"
          aria-live="off"
          onScroll={(event) => {
            const { scrollTop: top, scrollHeight: height } = event.currentTarget;
            // upwards only people scroll, except where the next page begins, which is shorter at first
            if (top < scrolledTo.current.top - ROW && height >= scrolledTo.current.height) {
              setFollows(false);
            }
            scrolledTo.current = { top, height };
          }}
        >
          <div class={styles["space"]} style={{ height: `${rows.getTotalSize()}px` }}>
            {rows.getVirtualItems().map((item) => (
              <div
                key={item.key}
                data-index={item.index}
                {...(wraps && { ref: rows.measureElement })}
                class={styles["row"]}
                style={{ transform: `translateY(${item.start}px)` }}
              >
                <Line
                  number={first + item.index + 1}
                  line={source.line(first + item.index)}
                  mark={find?.mark ?? null}
                  isCurrent={first + item.index === current}
                  run={run.id}
                  files={files}
                />
              </div>
            ))}
          </div>
        </div>
      )}
    </section>
  );
}

function fileName(run: Run, key: StreamKey | null): string {
  return `${run.name.replaceAll("/", "-")}-rank${key?.rank ?? 0}-${key?.stream ?? "stdout"}.log`;
}
