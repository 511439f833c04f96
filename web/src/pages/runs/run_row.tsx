/** A row of the table of runs. It is drawn again only when something of it has changed. */
import { memo } from "preact/compat";
import { PhaseBadge } from "@/parts/phase";
import { cellText, cellValue, displayName, isRightAligned, type Run } from "./columns";
import styles from "./runs_table.module.css";

const TIMES: readonly string[] = ["submitted", "started", "ended"];

/** What a row does. The same object at each render, so that rows can compare it. */
export interface RowActions {
  onSelect: (id: string, kind: "toggle" | "extend") => void;
  onActivate: (id: string) => void;
  onOpen: (id: string) => void;
  onStar: (run: Run) => void;
}

export const cellClass = (column: string): string =>
  `${styles["cell"]} ${isRightAligned(column) ? styles["right"] : ""} ${column === "name" ? styles["sticky"] : ""}`;

let timeFormat: Intl.DateTimeFormat | undefined;

/** Returns a time in words of the browser's language. A formatter is slow to make, so there is one. */
function formatTime(at: string): string {
  timeFormat ??= new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
  return timeFormat.format(new Date(at));
}

/** Returns whether a click opens the address here, and not in another tab or window. */
const isPlain = (event: MouseEvent): boolean =>
  event.button === 0 && !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;

function cellContent(run: Run, column: string, now: number, onOpen: RowActions["onOpen"]) {
  if (column === "phase") {
    return <PhaseBadge phase={run.phase} />;
  }
  if (column === "name") {
    return (
      <a
        href={`/runs/${run.id}`}
        tabIndex={-1}
        title={run.name}
        class={styles["name"]}
        onClick={(event) => {
          if (isPlain(event)) {
            event.preventDefault();
            onOpen(run.id);
          }
        }}
      >
        {displayName(run)}
        {run.spec.label && <span class={styles["full"]}>{run.name}</span>}
      </a>
    );
  }
  if (column === "tags") {
    return Object.entries(run.spec.tags ?? {}).map(([key, tag]) => (
      <span key={key} class={styles["tag"]}>
        {tag === "" ? key : `${key}=${tag}`}
      </span>
    ));
  }
  const value = cellValue(run, column, now);
  const text = cellText(column, value, now);
  const isTime = TIMES.includes(column) && value !== null;
  return <span title={isTime ? formatTime(String(value)) : text}>{text}</span>;
}

interface RowProps {
  run: Run;
  columns: readonly string[];
  widths: readonly number[]; // in pixels, of the columns
  index: number;
  start: number; // pixels from the top
  isSelected: boolean;
  isActive: boolean;
  now: number;
  starRefusal: string; // why it cannot be starred; "" if it can
  actions: RowActions;
}

export const RunRow = memo(function RunRow({
  run,
  columns,
  widths,
  index,
  start,
  isSelected,
  isActive,
  now,
  starRefusal,
  actions,
}: RowProps) {
  return (
    <div
      id={`run-${run.id}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      data-active={isActive ? "" : undefined}
      class={`${styles["row"]} ${styles["line"]}`}
      style={{ transform: `translateY(${start}px)` }}
      onClick={(event) => {
        if (event.target instanceof Element && event.target.closest("a, button, input") === null) {
          if (event.shiftKey) {
            actions.onSelect(run.id, "extend");
          }
          actions.onActivate(run.id);
        }
      }}
      onDblClick={() => actions.onOpen(run.id)}
    >
      <div role="gridcell" class={styles["mark"]}>
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={`select ${run.name}`}
          checked={isSelected}
          onClick={(event) => {
            actions.onSelect(run.id, event.shiftKey ? "extend" : "toggle");
            actions.onActivate(run.id);
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
          disabled={starRefusal !== ""}
          title={starRefusal}
          onClick={() => actions.onStar(run)}
        >
          {run.starred ? "★" : "☆"}
        </button>
      </div>
      {columns.map((name, place) => (
        <div key={name} role="gridcell" class={cellClass(name)} style={{ width: `${widths[place] ?? 0}px` }}>
          {cellContent(run, name, now, actions.onOpen)}
        </div>
      ))}
    </div>
  );
});
