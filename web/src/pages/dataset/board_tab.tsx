import { useEffect, useMemo, useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { ApiError, type Schemas } from "@/api/client";
import { type Board, type Dataset, type DatasetVersion, getBoard } from "@/api/datasets";
import { followEvents, isStreaming } from "@/api/events";
import { usePolled } from "@/api/polling";
import { whyNoMetric } from "@/api/rights";
import { FINAL_PHASES } from "@/api/runs";
import { Button } from "@/parts/button";
import { type DataColumn, DataTable } from "@/parts/data_table";
import field from "@/parts/field.module.css";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { Time } from "@/parts/time";
import { formatCount, formatNumber } from "@/text/format";
import { MetricDialog } from "./metric_dialog";
import { differingParams } from "./params";
import { RecordChart } from "./record_chart";
import styles from "./dataset_page.module.css";

const FIRST_ROWS = 100;
const MAX_ROWS = 1000;
const POLL_MS = 15_000;
const DEBOUNCE_MS = 1000;
const MAX_PARAMS = 5;
const SOURCES: Record<Schemas["ValueSource"], string> = {
  summary: "the summary, else the last value",
  last: "the last logged value",
  best: "the best logged value",
};

type Row = Board["rows"][number];

/** The leaderboard of a dataset: one result of each run, the best run first. */
export function BoardTab({
  dataset,
  versions,
  reload,
}: {
  dataset: Dataset;
  versions: readonly DatasetVersion[];
  reload: () => void;
}) {
  const [search, setSearch] = useSearchParams();
  const [limit, setLimit] = useState(FIRST_ROWS);
  const [isEditing, setEditing] = useState(false);
  const metric = search.get("metric") ?? "";
  const value = (Object.keys(SOURCES) as Schemas["ValueSource"][]).find(
    (each) => each === search.get("value"),
  );
  const board = usePolled(
    `board ${dataset.name} ${dataset.metric} ${dataset.higher_is_better} ${metric} ${value} ${limit}`,
    () => getBoard(dataset.name, { limit, ...(metric ? { metric } : {}), ...(value ? { value } : {}) }),
    () => (isStreaming.value ? null : POLL_MS),
  );
  const again = board.reload;
  useEffect(() => {
    let timer = 0;
    const stop = followEvents((event) => {
      if (event.kind === "reset" || (event.run && FINAL_PHASES.has(event.run.phase))) {
        window.clearTimeout(timer);
        timer = window.setTimeout(again, DEBOUNCE_MS);
      }
    });
    return () => {
      window.clearTimeout(timer);
      stop();
    };
  }, [again]);
  const loaded = board.data;
  const columns = useMemo(() => (loaded ? columnsOf(loaded) : []), [loaded]);
  const change = (key: string, text: string) =>
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        if (text === "") {
          next.delete(key);
        } else {
          next.set(key, text);
        }
        return next;
      },
      { replace: true },
    );
  if (loaded === null) {
    return board.error === null ? <Loading /> : <ErrorNotice error={board.error} />;
  }
  const names = [...new Set([loaded.metric, ...loaded.rows.flatMap((row) => Object.keys(row.summary))])]
    .filter((name) => name !== "")
    .sort();
  const refusal = whyNoMetric(versions);
  const bar = (
    <div class={page["bar"]}>
      <label>
        Metric
        <select
          class={field["input"]}
          value={metric}
          onChange={(event) => change("metric", event.currentTarget.value)}
        >
          <option value="">
            {metric === "" && loaded.metric ? `${loaded.metric} (default)` : "default"}
          </option>
          {[...new Set([...names, metric])]
            .filter((name) => name !== "")
            .map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
        </select>
      </label>
      <label>
        Value
        <select
          class={field["input"]}
          value={value ?? ""}
          onChange={(event) => change("value", event.currentTarget.value)}
        >
          <option value="">{SOURCES.summary}</option>
          <option value="last">{SOURCES.last}</option>
          <option value="best">{SOURCES.best}</option>
        </select>
      </label>
      {loaded.metric && (
        <span class={page["quiet"]}>{loaded.higher_is_better ? "higher is better" : "lower is better"}</span>
      )}
      <Button kind="quiet" disabled={refusal !== ""} title={refusal} onClick={() => setEditing(true)}>
        Change the default
      </Button>
    </div>
  );
  return (
    <>
      {bar}
      {board.error !== null && !(board.error instanceof ApiError && board.error.status === 0) && (
        <ErrorNotice error={board.error} />
      )}
      {loaded.rows.length === 0 ? (
        <Empty
          title={metric ? `No run on ${dataset.name} has logged ${metric}` : "No run has a result yet"}
          command={`hop run main.py -d ${dataset.name}`}
        >
          <p>
            A script records a result with <code>hop.summary(val_acc=…)</code>.
          </p>
        </Empty>
      ) : (
        <>
          <section class={page["panel"]}>
            <h2>
              Best <Name text={loaded.metric} /> so far
            </h2>
            <RecordChart board={loaded} />
          </section>
          <DataTable label="leaderboard" columns={columns} rows={loaded.rows} rowKey={(row) => row.run} />
          {loaded.ranked > loaded.rows.length && (
            <div class={page["bar"]}>
              <span class={page["quiet"]}>
                The best {loaded.rows.length} of {formatCount(loaded.ranked, "run")}
              </span>
              {limit < MAX_ROWS && <Button onClick={() => setLimit(MAX_ROWS)}>Show up to {MAX_ROWS}</Button>}
            </div>
          )}
        </>
      )}
      {isEditing && (
        <MetricDialog
          dataset={dataset}
          metric={metric === "" ? loaded.metric : ""}
          names={names}
          onClose={() => setEditing(false)}
          onChanged={() => {
            change("metric", "");
            reload();
          }}
        />
      )}
    </>
  );
}

function columnsOf(board: Board): DataColumn<Row>[] {
  const hasSteps = board.rows.some((row) => row.step !== null);
  return [
    { key: "rank", title: "#", value: (row) => row.rank, isNumber: true },
    {
      key: "value",
      title: board.metric,
      value: (row) => Number(row.value),
      cell: (row) => <strong class={styles["value"]}>{formatNumber(row.value)}</strong>,
      isNumber: true,
    },
    ...(hasSteps
      ? [{ key: "step", title: "Step", value: (row: Row) => row.step, isNumber: true } as DataColumn<Row>]
      : []),
    {
      key: "run",
      title: "Run",
      value: (row) => row.label || row.name,
      cell: (row) => (
        <span class={styles["run"]}>
          <Link href={`/runs/${row.name}`}>{row.label || row.name}</Link>
          {row.label && <span class={page["quiet"]}>{row.name}</span>}
        </span>
      ),
    },
    { key: "user", title: "User", value: (row) => row.user },
    {
      key: "date",
      title: "Date",
      value: (row) => row.submitted_at,
      cell: (row) => <Time at={row.submitted_at} />,
    },
    { key: "version", title: "Version", value: (row) => row.version || null, isNumber: true },
    ...differingParams(board.rows.map((row) => row.params))
      .slice(0, MAX_PARAMS)
      .map((name): DataColumn<Row> => ({
        key: `params.${name}`,
        title: name,
        value: (row) => row.params[name],
        cell: (row) => {
          const value = row.params[name];
          return typeof value === "number" ? formatNumber(value) : String(value ?? "");
        },
      })),
    ...(board.rows.some((row) => row.checkpoint_step !== null) ? [CHECKPOINT] : []),
  ];
}

const CHECKPOINT: DataColumn<Row> = {
  key: "checkpoint",
  title: "Checkpoint",
  value: (row) => row.checkpoint_step,
  cell: (row) =>
    row.checkpoint_step === null ? (
      ""
    ) : (
      <Link href={`/runs/${row.name}?tab=checkpoints`}>step {row.checkpoint_step}</Link>
    ),
};
