import { useMemo, useRef } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { useVirtualizer } from "@tanstack/react-virtual";
import { serverNow } from "@/api/answers";
import { api, data } from "@/api/client";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatCount } from "@/text/format";
import styles from "./cluster.module.css";
import { nodeHref, queueHref, readCalendar, readTimeline } from "./cluster_data";
import { axisTimes, placeSpans, type Bar, type Range, type TimelineRow } from "./spans";
import { useLive } from "./use_live";

const HOUR_MS = 3_600_000;
const HOURS = [2, 6, 12, 24, 72, 168];
const LANE_PX = 20;
const ROW_PAD_PX = 8;
const NOW_SHARE = 0.05; // of the axis: times that are nearer to now would be below its name
const NEAR_SHARE = 0.14; // the same on a phone

async function readAll(hours: number, queue: string) {
  const now = serverNow();
  const range: Range = { since: now - hours * HOUR_MS, until: now + hours * HOUR_MS, now };
  const [since, until] = [new Date(range.since).toISOString(), new Date(range.until).toISOString()];
  const [timeline, occurrences, { nodes }, { queues }] = await Promise.all([
    readTimeline({ since, until, ...(queue === "" ? {} : { queue }) }),
    readCalendar(since, until),
    data(api.GET("/api/v1/nodes")),
    data(api.GET("/api/v1/queues")),
  ]);
  return { range, timeline, occurrences, nodes, queues };
}

/** What ran in the last hours, runs, and is promised for the next hours: a row for each node or queue. */
export function TimelineTab() {
  const [address, setAddress] = useSearchParams();
  const by = address.get("by") === "queue" ? "queue" : "node";
  const queue = address.get("queue") ?? "";
  const hours = HOURS.find((each) => String(each) === address.get("hours")) ?? 12;
  const { data: found, error } = useLive(
    `timeline ${hours} ${queue}`,
    () => readAll(hours, queue),
    ["run", "node", "reservation", "queues"],
    30_000,
  );
  const rows = useMemo(() => {
    if (!found) {
      return [];
    }
    const names =
      by === "node"
        ? found.nodes.map((node) => node.id)
        : found.queues
            .filter((each) => each.leaf && (queue === "" || isBelow(found.queues, each.name, queue)))
            .map((each) => each.name);
    return placeSpans(names, found.timeline.spans, found.occurrences, by, found.range);
  }, [found, by, queue]);
  const set = (part: Record<string, string>) => {
    const words = { by, hours: String(hours), queue, ...part };
    setAddress(
      {
        tab: "timeline",
        ...(words.by === "node" ? {} : { by: words.by }),
        ...(words.hours === "12" ? {} : { hours: words.hours }),
        ...(words.queue === "" ? {} : { queue: words.queue }),
      },
      { replace: true },
    );
  };
  return (
    <>
      <div class={pageStyles["bar"]}>
        <label>
          Rows
          <select
            class={fieldStyles["input"]}
            value={by}
            onChange={(event) => set({ by: event.currentTarget.value })}
          >
            <option value="node">nodes</option>
            <option value="queue">queues</option>
          </select>
        </label>
        <label>
          Last and next
          <select
            class={fieldStyles["input"]}
            value={String(hours)}
            onChange={(event) => set({ hours: event.currentTarget.value })}
          >
            {HOURS.map((each) => (
              <option key={each} value={String(each)}>
                {each < 48 ? formatCount(each, "hour") : formatCount(each / 24, "day")}
              </option>
            ))}
          </select>
        </label>
        <label>
          Queue
          <select
            class={fieldStyles["input"]}
            value={queue}
            onChange={(event) => set({ queue: event.currentTarget.value })}
          >
            <option value="">all</option>
            {(found?.queues ?? []).map((each) => (
              <option key={each.name} value={each.name}>
                {each.name}
              </option>
            ))}
          </select>
        </label>
        <p class={styles["legend"]}>
          <span class={`${styles["swatch"]} ${styles["ended"]}`} /> ran
          <span class={`${styles["swatch"]} ${styles["live"]}`} /> runs, to its expected end
          <span class={`${styles["swatch"]} ${styles["promised"]}`} /> promised
          <span class={`${styles["swatch"]} ${styles["reserved"]}`} /> reserved
        </p>
      </div>
      {!found && (error === null ? <Loading /> : <ErrorNotice error={error} />)}
      {found?.timeline.isCut && (
        <p class={pageStyles["quiet"]} role="status">
          The newest {found.timeline.spans.length} attempts are shown: choose fewer hours, or a queue.
        </p>
      )}
      {found && found.timeline.spans.length === 0 && (
        <Empty title="Nothing ran in this time, and nothing is promised" command="hop run main.py" />
      )}
      {found && rows.length > 0 && <Chart rows={rows} range={found.range} by={by} />}
    </>
  );
}

function isBelow(
  queues: readonly { name: string; parent: string | null }[],
  name: string,
  top: string,
): boolean {
  let level: string | null | undefined = name;
  while (level !== null && level !== undefined && level !== top) {
    level = queues.find((each) => each.name === level)?.parent;
  }
  return level === top;
}

const pad = (value: number) => String(value).padStart(2, "0");

function timeText(at: number, range: Range): string {
  const date = new Date(at);
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  const isLong = range.until - range.since > 26 * HOUR_MS;
  return isLong ? `${date.getMonth() + 1}/${date.getDate()} ${clock}` : clock;
}

function Chart({ rows, range, by }: { rows: readonly TimelineRow[]; range: Range; by: "node" | "queue" }) {
  const scroll = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: (index) => (rows[index]?.lanes ?? 1) * LANE_PX + ROW_PAD_PX,
    getItemKey: (index) => rows[index]?.name ?? index,
    overscan: 10,
  });
  const share = (part: number) => part * (range.until - range.since);
  const percent = (at: number) => `${((at - range.since) / (range.until - range.since)) * 100}%`;
  return (
    <div ref={scroll} class={styles["chart"]} tabIndex={0} role="group" aria-label="timeline">
      <div class={styles["axis"]} aria-hidden="true">
        <div>
          {axisTimes(range).map((at) => (
            <span key={at} style={{ left: percent(at) }}>
              {Math.abs(at - range.now) > share(NOW_SHARE) && (
                <small class={Math.abs(at - range.now) < share(NEAR_SHARE) ? styles["near"] : undefined}>
                  {timeText(at, range)}
                </small>
              )}
            </span>
          ))}
          <b style={{ left: percent(range.now) }}>now</b>
        </div>
      </div>
      <ul class={styles["lanes"]} style={{ height: `${virtual.getTotalSize()}px` }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) {
            return null;
          }
          return (
            <li
              key={item.key}
              class={styles["lane"]}
              style={{ transform: `translateY(${item.start}px)`, height: `${item.size}px` }}
            >
              <Link
                class={styles["laneName"]}
                href={by === "node" ? nodeHref(row.name) : queueHref(row.name)}
                title={row.name}
              >
                {row.name}
              </Link>
              <div class={styles["track"]}>
                <span class={styles["now"]} style={{ left: percent(range.now) }} />
                {row.bands.map((band) => (
                  <span
                    key={band.key}
                    class={styles["band"]}
                    title={`reserved: ${band.occurrence.reservation}`}
                    style={{ left: `${band.left * 100}%`, width: `${band.width * 100}%` }}
                  />
                ))}
                {row.bars.map((bar) => (
                  <SpanBar key={bar.key} bar={bar} />
                ))}
              </div>
            </li>
          );
        })}
      </ul>
    </div>
  );
}

function SpanBar({ bar }: { bar: Bar }) {
  const { span } = bar;
  const gpus = span.total_gpu_milli > 0 ? `${span.total_gpu_milli / 1000} GPUs` : "no GPU";
  const clock = (at: string | null) => (at === null ? "?" : new Date(at).toLocaleString());
  const isBad = span.state === "ended" && ["failed", "lost"].includes(span.phase);
  const title = [
    span.name,
    `${span.phase || span.state}, queue ${span.queue}, ${gpus}`,
    `${clock(span.start_at)} to ${span.state === "ended" ? "" : "about "}${clock(span.end_at)}`,
    span.nodes.join(", "),
  ].join("\n");
  return (
    <Link
      href={`/runs/${span.run}`}
      class={`${styles["bar"]} ${styles[span.state]} ${isBad ? styles["bad"] : ""}`}
      title={title}
      aria-label={title.replaceAll("\n", ", ")}
      style={{
        left: `${bar.left * 100}%`,
        width: `${bar.width * 100}%`,
        top: `${bar.lane * LANE_PX + ROW_PAD_PX / 2}px`,
      }}
    >
      <span>{span.name}</span>
    </Link>
  );
}
