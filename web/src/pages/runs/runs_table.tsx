/** The table itself: only the rows that are in sight are in the document, however many there are. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { getCoreRowModel, useReactTable, type ColumnDef } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Link } from "wouter-preact";
import { PhaseBadge } from "@/parts/phase";
import {
  cellText,
  cellValue,
  columnKind,
  columnTitle,
  columnWidth,
  displayName,
  isRightAligned,
  isSortable,
  queryName,
  type Run,
} from "./columns";
import { tableLines } from "./groups";
import styles from "./runs_table.module.css";
import type { Selection } from "./selection";
import { nextSort } from "./view";

const ROW_PX = 34;
const HEAD_PX = 34;
const OVERSCAN = 12;
const NEAR_END = 60; // rows before the end at which the next page is read

export interface TableProps {
  runs: readonly Run[];
  columns: readonly string[];
  sort: string;
  group: string;
  isComplete: boolean;
  selection: Selection;
  active: string | null;
  now: number;
  onSort: (sort: string) => void;
  onSelect: (id: string, kind: "toggle" | "extend") => void;
  onActivate: (id: string) => void;
  onOpen: (id: string) => void;
  onStar: (run: Run) => void;
  onEnd: () => void;
}

function sortState(sort: string, name: string): "ascending" | "descending" | "none" {
  return sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
}

function Cell({ run, column, now }: { run: Run; column: string; now: number }) {
  const value = cellValue(run, column, now);
  if (column === "phase") {
    return <PhaseBadge phase={run.phase} />;
  }
  if (column === "name") {
    return (
      <Link href={`/runs/${run.id}`} tabIndex={-1} title={run.name} class={styles["name"]}>
        {displayName(run)}
        {run.spec.label && <span class={styles["full"]}>{run.name}</span>}
      </Link>
    );
  }
  if (column === "tags") {
    return (
      <>
        {Object.entries(run.spec.tags ?? {}).map(([key, tag]) => (
          <span key={key} class={styles["tag"]}>
            {tag === "" ? key : `${key}=${tag}`}
          </span>
        ))}
      </>
    );
  }
  const text = cellText(column, value, now);
  const isTime = ["submitted", "started", "ended"].includes(column) && value !== null;
  return <span title={isTime ? new Date(String(value)).toLocaleString() : text}>{text}</span>;
}

export function RunsTable(props: TableProps) {
  const { runs, columns, sort, group, isComplete, selection, active, now } = props;
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
  const lines = useMemo(() => tableLines(runs, group, now, isComplete), [runs, group, isComplete]);
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
  }, [lastInSight, lines.length, isComplete]);
  useEffect(() => {
    const index = lines.findIndex((line) => line.kind === "run" && line.run.id === active);
    if (index >= 0) {
      virtual.scrollToIndex(index, { align: "auto" });
    }
  }, [active]);

  const headers = table.getHeaderGroups()[0]?.headers ?? [];
  const width = table.getTotalSize() + 62;
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
                class={`${styles["cell"]} ${isRightAligned(name) ? styles["right"] : ""} ${name === "name" ? styles["sticky"] : ""}`}
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
          const isSelected = selection.ids.has(run.id);
          return (
            <div
              key={run.id}
              id={`run-${run.id}`}
              role="row"
              aria-rowindex={index + 2}
              aria-selected={isSelected}
              data-active={run.id === active ? "" : undefined}
              class={`${styles["row"]} ${styles["line"]}`}
              style={place}
              onClick={(event) => {
                if (event.target instanceof Element && event.target.closest("a, button, input") === null) {
                  if (event.shiftKey) {
                    props.onSelect(run.id, "extend");
                  }
                  props.onActivate(run.id);
                }
              }}
              onDblClick={() => props.onOpen(run.id)}
            >
              <div role="gridcell" class={styles["mark"]}>
                <input
                  type="checkbox"
                  tabIndex={-1}
                  aria-label={`select ${run.name}`}
                  checked={isSelected}
                  onClick={(event) => {
                    props.onSelect(run.id, event.shiftKey ? "extend" : "toggle");
                    props.onActivate(run.id);
                  }}
                />
              </div>
              <div role="gridcell" class={styles["mark"]}>
                <button
                  type="button"
                  tabIndex={-1}
                  class={run.starred ? styles["starred"] : styles["star"]}
                  aria-pressed={run.starred ?? false}
                  aria-label={`star ${run.name}`}
                  onClick={() => props.onStar(run)}
                >
                  {run.starred ? "★" : "☆"}
                </button>
              </div>
              {headers.map((header) => {
                const name = header.column.id;
                return (
                  <div
                    key={name}
                    role="gridcell"
                    class={`${styles["cell"]} ${isRightAligned(name) ? styles["right"] : ""} ${name === "name" ? styles["sticky"] : ""}`}
                    style={{ width: `${header.getSize()}px` }}
                  >
                    <Cell run={run} column={name} now={now} />
                  </div>
                );
              })}
            </div>
          );
        })}
      </div>
    </div>
  );
}
