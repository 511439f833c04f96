import { lazy, Suspense } from "preact/compat";
import { useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { brushedLines } from "@/charts/parallel_axes";
import { Button } from "@/parts/button";
import { Empty, Loading } from "@/parts/notices";
import { Popover } from "@/parts/popover";
import { formatCount } from "@/text/format";
import { compilePattern } from "@/text/pattern";
import { type Column, isDifferent } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";

const ParallelChart = lazy(() => import("@/charts/parallel_chart").then((module) => module.ParallelChart));
const MAX_AXES = 12; // of the page's choice
const MAX_CHOICES = 200;
const SECTIONS = ["Params", "Summary", "Latest metrics"];

/** Returns the columns of the axes: what differs among params, then results, without names that occur twice. */
export function parallelAxes(columns: readonly Column[]): Column[] {
  const names = new Set<string>();
  return columns
    .filter((column) => SECTIONS.includes(column.section) && isDifferent(column))
    .filter((column) => !names.has(column.name) && names.add(column.name))
    .slice(0, MAX_AXES);
}

/** A line for each run through its params and results. */
export function ParallelTab({ runs, labels, columns, view, change, highlight, hidden }: CompareParts) {
  const [, navigate] = useLocation();
  const byKey = new Map(columns.map((column) => [column.key, column]));
  const chosen = view.axes.flatMap((key) => byKey.get(key) ?? []);
  const axes = chosen.length > 0 ? chosen : parallelAxes(columns);
  const keys = axes.map((axis) => axis.key);
  const inside = brushedLines(axes, view.brushes, runs.length);
  const isSelected = inside.length < runs.length;
  return (
    <>
      <div class={styles["bar"]} role="group" aria-label="axes">
        <Popover label={`Axes (${axes.length})`} title="axes">
          <AxesMenu columns={columns} keys={keys} onChange={(to) => change({ axes: to })} />
        </Popover>
        <label>
          Colours by
          <select
            value={byKey.has(view.colourBy) ? view.colourBy : ""}
            onChange={(event) => change({ colourBy: event.currentTarget.value })}
          >
            <option value="">run</option>
            {columns.map((column) => (
              <option key={column.key} value={column.key}>
                {column.key}
              </option>
            ))}
          </select>
        </label>
        <output class={styles["count"]}>
          {inside.length} of {formatCount(runs.length, "run")} selected
        </output>
        {isSelected && (
          <>
            <Button onClick={() => change({ brushes: new Map() })}>Select all</Button>
            <Button
              disabled={inside.length === 0}
              onClick={() =>
                change({
                  runs: inside.flatMap((line) => runs[line]?.id ?? []),
                  brushes: new Map(),
                })
              }
            >
              Compare only these
            </Button>
          </>
        )}
      </div>
      {axes.length < 2 ? (
        <Empty title="Fewer than two values differ between these runs">
          <p>Choose axes yourself above.</p>
        </Empty>
      ) : (
        <div class={styles["figure"]}>
          <Suspense fallback={<Loading />}>
            <ParallelChart
              title="runs"
              axes={axes}
              keys={runs.map((run) => run.id)}
              labels={labels}
              colourBy={byKey.get(view.colourBy) ?? null}
              hidden={hidden}
              highlight={highlight}
              brushes={view.brushes}
              onBrushes={(brushes) => change({ brushes })}
              logAxes={new Set(view.logAxes)}
              onLogAxes={(to) => change({ logAxes: [...to] })}
              onAxes={(to) => change({ axes: to })}
              onColourBy={(key) => change({ colourBy: key ?? "" })}
              onOpen={(id) => navigate(`/runs/${id}`)}
            />
          </Suspense>
        </div>
      )}
    </>
  );
}

/** The columns that can be axes, each with a box. */
function AxesMenu({
  columns,
  keys,
  onChange,
}: {
  columns: readonly Column[];
  keys: readonly string[];
  onChange: (keys: readonly string[]) => void;
}) {
  const [text, setText] = useState("");
  const matches = compilePattern(text);
  const found = columns.filter((column) => matches?.(column.key) ?? true);
  return (
    <div class={styles["choices"]}>
      <input
        type="search"
        placeholder="regular expression"
        aria-label="find axes"
        aria-invalid={matches === null}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      {found.slice(0, MAX_CHOICES).map((column) => (
        <label key={column.key}>
          <input
            type="checkbox"
            checked={keys.includes(column.key)}
            onChange={(event) =>
              onChange(
                event.currentTarget.checked
                  ? [...keys, column.key]
                  : keys.filter((each) => each !== column.key),
              )
            }
          />
          <span>{column.key}</span>
        </label>
      ))}
      {found.length > MAX_CHOICES && <p>and {found.length - MAX_CHOICES} more: type a part of the name</p>}
      <Button onClick={() => onChange([])}>Usual axes</Button>
    </div>
  );
}
