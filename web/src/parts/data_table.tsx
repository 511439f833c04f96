/** A table that sorts itself. Of a long one, only the rows that are in sight are in the document. */
import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { useVirtualizer } from "@tanstack/react-virtual";
import { naturalOrder } from "@/text/natural_order";
import styles from "./data_table.module.css";

const LONG = 100; // rows from which the table scrolls by itself
const ROW_PX = 34;
const OVERSCAN = 12;

/** What a cell is sorted by. Rows without a value are last in both directions. */
export type CellValue = string | number | boolean | null | undefined;

export interface DataColumn<Row> {
  key: string;
  title: string; // "": the column of actions
  value?: (row: Row) => CellValue; // absent: the column does not sort
  cell?: (row: Row) => ComponentChildren; // default: the value as text
  isNumber?: boolean;
}

/**
 * @param label what the table is, for screen readers
 * @param sort the key of the column that is sorted by, with a leading `-` for the largest first; with `onSort`, the
 *   caller keeps it (in the address), else it is the order at first. `""`: the order of `rows`.
 * @param isMarked rows that stand out, such as the chosen one
 */
export function DataTable<Row>({
  label,
  columns,
  rows,
  rowKey,
  sort = "",
  onSort,
  isMarked,
}: {
  label: string;
  columns: readonly DataColumn<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  sort?: string;
  onSort?: (sort: string) => void;
  isMarked?: (row: Row) => boolean;
}) {
  const [own, setOwn] = useState(sort);
  const shownSort = onSort ? sort : own;
  const ordered = useMemo(() => {
    const column = columns.find(({ key }) => key === shownSort.replace(/^-/, ""));
    return sortRows(rows, column?.value, shownSort.startsWith("-"));
  }, [rows, columns, shownSort]);
  const isLong = ordered.length > LONG;
  const scroll = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: ordered.length,
    enabled: isLong,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
  });
  const inSight = virtual.getVirtualItems();
  const shown = isLong ? inSight.flatMap((item) => ordered[item.index] ?? []) : ordered;
  const before = isLong ? (inSight[0]?.start ?? 0) : 0;
  const after = isLong ? virtual.getTotalSize() - (inSight.at(-1)?.end ?? 0) : 0;
  const change = (key: string) => {
    const next = shownSort === key ? `-${key}` : shownSort === `-${key}` ? "" : key;
    (onSort ?? setOwn)(next);
  };
  return (
    <div
      ref={scroll}
      class={`${styles["scroll"]} ${isLong ? styles["long"] : ""}`}
      tabIndex={0}
      role="group"
      aria-label={label}
    >
      <table class={styles["table"]} aria-label={label} aria-rowcount={ordered.length + 1}>
        <thead>
          <tr>
            {columns.map(({ key, title, value, isNumber }) => (
              <th
                key={key}
                scope="col"
                class={cellClass({ title, isNumber })}
                aria-sort={
                  shownSort === key ? "ascending" : shownSort === `-${key}` ? "descending" : undefined
                }
              >
                {value ? (
                  <button type="button" onClick={() => change(key)}>
                    {title}
                    <span aria-hidden="true">
                      {shownSort === key ? " ↑" : shownSort === `-${key}` ? " ↓" : ""}
                    </span>
                  </button>
                ) : title === "" ? (
                  <span class={styles["spoken"]}>Actions</span>
                ) : (
                  title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {before > 0 && (
            <tr aria-hidden="true">
              <td colSpan={columns.length} style={{ height: `${before}px`, padding: 0 }} />
            </tr>
          )}
          {shown.map((row) => (
            <tr
              key={rowKey(row)}
              class={isMarked?.(row) ? styles["marked"] : undefined}
              aria-current={isMarked?.(row) ? "true" : undefined}
            >
              {columns.map(({ key, title, value, cell, isNumber }) => (
                <td key={key} class={cellClass({ title, isNumber })}>
                  {cell ? cell(row) : cellText(value?.(row))}
                </td>
              ))}
            </tr>
          ))}
          {after > 0 && (
            <tr aria-hidden="true">
              <td colSpan={columns.length} style={{ height: `${after}px`, padding: 0 }} />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

/** The column without a title has the actions of a row: they stay in sight. */
function cellClass({ title, isNumber }: { title: string; isNumber: boolean | undefined }) {
  return title === "" ? styles["actions"] : isNumber ? styles["number"] : undefined;
}

function cellText(value: CellValue): string {
  return value === null || value === undefined ? "" : String(value);
}

/** Returns the rows by their values, the largest first with `isDescending`; rows without a value are last. The value
 *  of a row is read once: a long table compares it many times. */
function sortRows<Row>(
  rows: readonly Row[],
  value: ((row: Row) => CellValue) | undefined,
  isDescending: boolean,
): readonly Row[] {
  if (value === undefined) {
    return rows;
  }
  const read = rows.map((row) => ({ row, value: value(row) ?? null }));
  const sign = isDescending ? -1 : 1;
  const sorted = read
    .filter((each) => each.value !== null)
    .sort((one, two) => sign * compare(one.value, two.value));
  return [...sorted, ...read.filter((each) => each.value === null)].map(({ row }) => row);
}

/** Numbers by size, texts as people order them (`b2` before `b10`), numbers before texts. */
function compare(one: CellValue, two: CellValue): number {
  if (typeof one === "number" && typeof two === "number") {
    return one - two;
  }
  if (typeof one !== typeof two) {
    return typeof one === "number" ? -1 : typeof two === "number" ? 1 : 0;
  }
  return naturalOrder(cellText(one), cellText(two));
}
