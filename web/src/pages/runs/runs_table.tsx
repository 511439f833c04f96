/** The table itself: only the rows that are in sight are in the document, however many there are. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { getCoreRowModel, useReactTable, type ColumnDef } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { whyNoSubmit } from "@/api/rights";
import { isLive } from "./batch";
import { columnKind, columnTitle, columnWidth, isSortable, queryName, type Run } from "./columns";
import { tableLines } from "./groups";
import { cellClass, RunRow, type RowActions } from "./run_row";
import styles from "./runs_table.module.css";
import type { Selection } from "./selection";
import type { GroupCounts } from "./server_counts";
import { nextSort } from "./view";

const ROW_PX = 34;
const HEAD_PX = 34;
const OVERSCAN = 8;
const SETTLED_TICK_MS = 30_000; // an ended run is drawn again for its age only
const NEAR_END = 60; // rows before the end at which the next page is read

export interface TableProps extends RowActions {
  runs: readonly Run[];
  columns: readonly string[];
  sort: string;
  group: string;
  isComplete: boolean;
  counts: GroupCounts;
  selection: Selection;
  active: string | null;
  now: number;
  onSort: (sort: string) => void;
  onEnd: () => void;
}

function sortState(sort: string, name: string): "ascending" | "descending" | "none" {
  return sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
}

export function RunsTable(props: TableProps) {
  const { runs, columns, sort, group, isComplete, counts, selection, active, now } = props;
  const scroll = useRef<HTMLDivElement>(null);
  const definitions = useMemo<ColumnDef<Run>[]>(
    () =>
      columns.map((name) => ({ id: name, header: columnTitle(name), size: columnWidth(name), minSize: 60 })),
    [columns],
  );
  const table = useReactTable({
    data: runs as Run[],
    columns: definitions,
    getCoreRowModel: getCoreRowModel(),
    getRowId: (run) => run.id,
    columnResizeMode: "onChange",
    manualSorting: true,
  });
  const lines = useMemo(
    () => tableLines(runs, group, now, isComplete, counts),
    [runs, group, isComplete, counts],
  );
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
    scrollPaddingStart: HEAD_PX,
  });
  const inSight = virtual.getVirtualItems();
  const lastInSight = inSight.at(-1)?.index ?? 0;
  useEffect(() => {
    if (!isComplete && lastInSight >= lines.length - NEAR_END) {
      props.onEnd();
    }
  }, [lastInSight, lines, isComplete]);
  useEffect(() => {
    const index = lines.findIndex((line) => line.kind === "run" && line.run.id === active);
    if (index >= 0) {
      virtual.scrollToIndex(index, { align: "auto" });
    }
  }, [active]);

  const headers = table.getHeaderGroups()[0]?.headers ?? [];
  const width = table.getTotalSize() + 62;
  const widths = useMemo(
    () => headers.map((header) => header.getSize()),
    [definitions, table.getState().columnSizing],
  );
  const starRefusal = whyNoSubmit();
  const settledNow = now - (now % SETTLED_TICK_MS);
  const latest = useRef(props);
  latest.current = props;
  const actions = useMemo<RowActions>(
    () => ({
      onSelect: (id, kind) => latest.current.onSelect(id, kind),
      onActivate: (id) => latest.current.onActivate(id),
      onOpen: (id) => latest.current.onOpen(id),
      onStar: (run) => latest.current.onStar(run),
    }),
    [],
  );
  return (
    <div
      ref={scroll}
      class={styles["scroll"]}
      role="grid"
      aria-label="runs"
      aria-rowcount={isComplete ? lines.length + 1 : -1}
      aria-colcount={columns.length + 2}
      aria-multiselectable="true"
      aria-activedescendant={active === null ? undefined : `run-${active}`}
      tabIndex={0}
    >
      <div role="rowgroup" class={styles["head"]} style={{ width: `${width}px` }}>
        <div role="row" class={styles["row"]}>
          <span role="columnheader" class={styles["mark"]}>
            <span class={styles["hidden"]}>selected</span>
          </span>
          <span role="columnheader" class={styles["mark"]}>
            <span class={styles["hidden"]}>starred</span>
          </span>
          {headers.map((header) => {
            const name = header.column.id;
            const state = sortState(sort, queryName(name));
            return (
              <div
                key={name}
                role="columnheader"
                aria-sort={isSortable(name) ? state : undefined}
                class={cellClass(name)}
                style={{ width: `${header.getSize()}px` }}
              >
                {isSortable(name) ? (
                  <button
                    type="button"
                    title={`sort by ${name}`}
                    onClick={() => props.onSort(nextSort(sort, queryName(name)))}
                  >
                    {columnTitle(name)}
                    <small>{columnKind(name)}</small>
                    {state !== "none" && <span aria-hidden="true">{state === "ascending" ? "↑" : "↓"}</span>}
                  </button>
                ) : (
                  columnTitle(name)
                )}
                <span
                  aria-hidden="true"
                  class={styles["resize"]}
                  onMouseDown={header.getResizeHandler()}
                  onTouchStart={header.getResizeHandler()}
                />
              </div>
            );
          })}
        </div>
      </div>
      <div
        role="rowgroup"
        class={styles["body"]}
        style={{ height: `${virtual.getTotalSize()}px`, width: `${width}px` }}
      >
        {inSight.map(({ index, start }) => {
          const line = lines[index];
          const place = { transform: `translateY(${start}px)` };
          if (line === undefined) {
            return null;
          }
          if (line.kind === "group") {
            return (
              <div
                key={`group-${index}`}
                role="row"
                aria-rowindex={index + 2}
                class={styles["group"]}
                style={place}
              >
                <div role="gridcell" aria-colspan={columns.length + 2}>
                  <span class={styles["groupName"]}>
                    {columnTitle(group)}: {line.text === "" ? "none" : line.text}
                  </span>{" "}
                  <span class={styles["count"]}>
                    {line.count}
                    {line.isComplete ? "" : "+"} {line.count === 1 && line.isComplete ? "run" : "runs"}
                  </span>
                </div>
              </div>
            );
          }
          const { run } = line;
          return (
            <RunRow
              key={run.id}
              run={run}
              columns={columns}
              widths={widths}
              index={index}
              start={start}
              isSelected={selection.ids.has(run.id)}
              isActive={run.id === active}
              now={isLive(run) ? now : settledNow}
              starRefusal={starRefusal}
              actions={actions}
            />
          );
        })}
      </div>
    </div>
  );
}
