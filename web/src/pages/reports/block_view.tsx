/** A block as readers see it. */
import { signal } from "@preact/signals";
import { useContext, useMemo, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { isFinal } from "@/api/runs";
import type { XKind } from "@/charts/axis_format";
import { CurveChart } from "@/charts/curve_chart";
import { CurveLegend } from "@/charts/curve_legend";
import type { Range } from "@/charts/curve_series";
import { useSeries } from "@/charts/series_data";
import { comparedCurves, type CurveGroup } from "@/pages/compare/compared_curves";
import { cellText, cellValue, columnTitle, isRightAligned } from "@/pages/runs/columns";
import { DataTable } from "@/parts/data_table";
import { LateMarkdown, topHeading } from "@/parts/late_markdown";
import { ErrorNotice, Loading } from "@/parts/notices";
import { formatNumber } from "@/text/format";
import type { Block, BlockOf } from "./blocks";
import { MediaGrid } from "./media_grid";
import styles from "./report.module.css";
import { ReportRunsContext, runLabel, useBlockRuns } from "./report_runs";
import { ParallelPicture, ScatterPicture } from "./run_pictures";

const USUAL_COLUMNS = ["name", "phase", "took"];

/** @param top the highest level of headings in the report; default: in this block */
export function BlockView({ block, top }: { block: Block; top?: number }) {
  const runs = useContext(ReportRunsContext);
  if (block.type === "text") {
    return <LateMarkdown text={block.text} top={top ?? topHeading([block.text])} />;
  }
  const isReady = block.type === "leaderboard" || block.runs.length === 0 || runs.isLoaded;
  return (
    <section class={styles["figure"]} aria-label={block.title || block.type}>
      {block.title !== "" && <h2>{block.title}</h2>}
      {isReady ? (
        <Content block={block} />
      ) : runs.error === null ? (
        <Loading rows={4} />
      ) : (
        <ErrorNotice error={runs.error} />
      )}
    </section>
  );
}

function Content({ block }: { block: Exclude<Block, { type: "text" }> }) {
  switch (block.type) {
    case "curves":
      return <Curves block={block} />;
    case "table":
      return <RunTable block={block} />;
    case "scatter":
      return <Scatter block={block} />;
    case "parallel":
      return <Parallel block={block} />;
    case "media":
      return <Media block={block} />;
    case "leaderboard":
      return <Leaderboard block={block} />;
  }
}

export function Nothing({ children }: { children: string }) {
  return <p class={styles["nothing"]}>{children}</p>;
}

const NO_RUNS = "No runs yet: choose some with Runs.";

function Curves({ block }: { block: BlockOf<"curves"> }) {
  const runs = useBlockRuns(block.runs);
  const [range, setRange] = useState<Range | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [highlight] = useState(() => signal<string | null>(null));
  const ids = useMemo(() => runs.map((run) => run.id), [runs.map((run) => run.id).join(" ")]);
  const groups = useMemo<CurveGroup[]>(() => {
    if (block.group === "") {
      return runs.map((run, place) => ({ key: run.id, label: runLabel(run), members: [place] }));
    }
    const members = new Map<string, number[]>();
    runs.forEach((run, place) => {
      const value = cellText(block.group, cellValue(run, block.group, serverNow()), serverNow());
      const label = `${columnTitle(block.group)}=${value === "" ? "none" : value}`;
      members.set(label, [...(members.get(label) ?? []), place]);
    });
    return [...members].map(([key, places]) => ({
      key,
      label: `${key} (${places.length})`,
      members: places,
    }));
  }, [runs, block.group]);
  const isLive = runs.some((run) => !isFinal(run));
  const found = useSeries({ runs: ids, names: block.metrics, x: block.x, range, isLive });
  const curves = useMemo(
    () =>
      new Map(block.metrics.map((name) => [name, comparedCurves(name, found.series, ids, groups, "range")])),
    [block.metrics, found.series, ids, groups],
  );
  if (runs.length === 0) {
    return <Nothing>{NO_RUNS}</Nothing>;
  }
  if (block.metrics.length === 0) {
    return <Nothing>No metrics yet: choose some.</Nothing>;
  }
  if (found.error !== null && found.series.size === 0) {
    return <ErrorNotice error={found.error} />;
  }
  const isMetricX = block.x.startsWith("metrics.");
  return (
    <>
      <CurveLegend
        series={groups.map((group, colour) => ({ ...group, colour }))}
        hidden={hidden}
        onHidden={setHidden}
        highlight={highlight}
      />
      <div class={styles["charts"]} aria-busy={found.isLoading}>
        {block.metrics.map((name) => (
          <div key={name} class={styles["chart"]}>
            <h3>{name}</h3>
            <CurveChart
              title={name}
              series={curves.get(name) ?? []}
              xKind={isMetricX ? "metric" : (block.x as XKind)}
              xLabel={isMetricX ? block.x.slice("metrics.".length) : block.x}
              smoothing={block.smoothing}
              isLogX={block.log_x}
              isLogY={block.log_y}
              range={range}
              onRange={setRange}
              highlight={highlight}
              hidden={hidden}
              hasLegend={false}
            />
          </div>
        ))}
      </div>
    </>
  );
}

function RunTable({ block }: { block: BlockOf<"table"> }) {
  const runs = useBlockRuns(block.runs);
  const names = block.columns.length === 0 ? USUAL_COLUMNS : block.columns;
  const now = serverNow();
  const columns = useMemo(
    () =>
      names.map((name) => ({
        key: name,
        title: columnTitle(name),
        isNumber: isRightAligned(name),
        value: (run: (typeof runs)[number]) => cellValue(run, name, now),
        cell: (run: (typeof runs)[number]) => {
          const text = cellText(name, cellValue(run, name, now), now);
          return name === "name" ? <Link href={`/runs/${run.id}`}>{text}</Link> : text;
        },
      })),
    [names.join("\n"), runs],
  );
  if (runs.length === 0) {
    return <Nothing>{NO_RUNS}</Nothing>;
  }
  return (
    <DataTable
      label={block.title || "table of runs"}
      columns={columns}
      rows={runs}
      rowKey={(run) => run.id}
    />
  );
}

function Scatter({ block }: { block: BlockOf<"scatter"> }) {
  const runs = useBlockRuns(block.runs);
  if (runs.length === 0) {
    return <Nothing>{NO_RUNS}</Nothing>;
  }
  if (block.x === "" || block.y === "") {
    return <Nothing>Choose a column for each axis.</Nothing>;
  }
  return <ScatterPicture runs={runs} x={block.x} y={block.y} />;
}

function Parallel({ block }: { block: BlockOf<"parallel"> }) {
  const runs = useBlockRuns(block.runs);
  if (runs.length === 0) {
    return <Nothing>{NO_RUNS}</Nothing>;
  }
  if (block.columns.length === 0) {
    return <Nothing>No columns yet: choose some that hold numbers.</Nothing>;
  }
  return <ParallelPicture runs={runs} columns={block.columns} />;
}

function Media({ block }: { block: BlockOf<"media"> }) {
  const runs = useBlockRuns(block.runs);
  if (runs.length === 0) {
    return <Nothing>{NO_RUNS}</Nothing>;
  }
  if (block.names.length === 0) {
    return <Nothing>No media yet: choose some names.</Nothing>;
  }
  return <MediaGrid runs={runs} names={block.names} steps={block.steps} />;
}

function Leaderboard({ block }: { block: BlockOf<"leaderboard"> }) {
  const { dataset, metric, limit } = block;
  const { data: board, error } = usePolled(
    `report board ${dataset} ${metric} ${limit}`,
    () =>
      dataset === null
        ? Promise.resolve(null)
        : data(
            api.GET("/api/v1/datasets/{name}/board", {
              params: { path: { name: dataset }, query: { limit, ...(metric !== "" && { metric }) } },
            }),
          ),
    () => null,
  );
  if (dataset === null) {
    return <Nothing>No dataset yet: choose one.</Nothing>;
  }
  if (board === null) {
    return error === null ? <Loading rows={3} /> : <ErrorNotice error={error} />;
  }
  if (board.rows.length === 0) {
    return <Nothing>{`No run on ${dataset} has a result yet.`}</Nothing>;
  }
  return (
    <DataTable
      label={`leaderboard of ${dataset}`}
      rows={board.rows}
      rowKey={(row) => row.run}
      columns={[
        { key: "rank", title: "Rank", isNumber: true, value: (row) => row.rank },
        {
          key: "name",
          title: "Run",
          value: (row) => row.name,
          cell: (row) => <Link href={`/runs/${row.run}`}>{row.label || row.name}</Link>,
        },
        { key: "user", title: "User", value: (row) => row.user },
        {
          key: "value",
          title: board.metric,
          isNumber: true,
          value: (row) => Number(row.value),
          cell: (row) => formatNumber(row.value),
        },
      ]}
    />
  );
}
