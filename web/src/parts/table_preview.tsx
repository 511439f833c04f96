/** A table of users' values, such as a CSV file or a `hop.Table`: sorts itself, and finds rows. */
import { useMemo, useState } from "preact/hooks";
import { formatCount, formatNumber } from "@/text/format";
import { type CellValue, type DataColumn, DataTable } from "./data_table";
import styles from "./table_preview.module.css";

const FIND_ROWS = 20; // from which a field to find rows is worth its place

type Row = readonly unknown[];
interface Numbered {
  number: number;
  cells: Row;
}

function cellText(cell: unknown): string {
  if (typeof cell === "number") {
    return formatNumber(cell);
  }
  return typeof cell === "string" ? cell : cell === null || cell === undefined ? "" : JSON.stringify(cell);
}

/** Whether all cells of a column are numbers, as text or not, or empty. */
function isNumeric(rows: readonly Row[], column: number): boolean {
  let hasNumber = false;
  for (const row of rows) {
    const text = cellText(row[column]).trim();
    if (text !== "" && !Number.isFinite(Number(text))) {
      return false;
    }
    hasNumber ||= text !== "";
  }
  return hasNumber;
}

/** `note`: what is left out, below the table. */
export function TablePreview({
  label,
  header,
  rows,
  note,
  isCompact = false,
}: {
  label: string;
  header: readonly unknown[];
  rows: readonly Row[];
  note?: string | null;
  /** Low, as one of several things on a page. */
  isCompact?: boolean;
}) {
  const [find, setFind] = useState("");
  const numbered = useMemo(() => rows.map((cells, number): Numbered => ({ number, cells })), [rows]);
  const columns = useMemo(
    () =>
      header.map((title, column): DataColumn<Numbered> => {
        const isNumber = isNumeric(rows, column);
        return {
          key: String(column),
          title: cellText(title),
          isNumber,
          value: ({ cells }): CellValue => {
            const text = cellText(cells[column]).trim();
            return isNumber ? (text === "" ? null : Number(cells[column])) : text;
          },
          cell: ({ cells }) => <span class={styles["cell"]}>{cellText(cells[column])}</span>,
        };
      }),
    [header, rows],
  );
  const words = find.trim().toLowerCase();
  const found = useMemo(
    () =>
      words === ""
        ? numbered
        : numbered.filter(({ cells }) => cells.some((cell) => cellText(cell).toLowerCase().includes(words))),
    [numbered, words],
  );
  return (
    <div class={`${styles["preview"]} ${isCompact ? styles["compact"] : ""}`}>
      {rows.length >= FIND_ROWS && (
        <div class={styles["bar"]}>
          <input
            type="search"
            placeholder="Find rows"
            aria-label={`find rows of ${label}`}
            value={find}
            onInput={(event) => setFind(event.currentTarget.value)}
          />
          <span role="status">
            {found.length === rows.length ? "" : `${found.length} of `}
            {formatCount(rows.length, "row")}
          </span>
        </div>
      )}
      <DataTable label={label} columns={columns} rows={found} rowKey={({ number }) => String(number)} />
      {note && <p>{note}</p>}
    </div>
  );
}
