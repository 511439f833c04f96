import { curveColour, curveDash } from "@/charts/palette";
import { shownTheme } from "@/charts/shown_theme";
import { Empty } from "@/parts/notices";
import { type Column, formatValue, isDifferent } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { compilePattern } from "./compare_view";
import { makeScale } from "./scale";

const [HEIGHT, TOP, BOTTOM, SPACE, MARGIN] = [440, 40, 20, 150, 70];
const MAX_AXES = 12;
const SECTIONS = ["Params", "Summary", "Latest metrics"];

/** Returns the columns of the axes: what differs among params, then results, without names that occur twice. */
export function parallelAxes(columns: readonly Column[], matches: (name: string) => boolean): Column[] {
  const names = new Set<string>();
  return columns
    .filter((column) => SECTIONS.includes(column.section) && isDifferent(column) && matches(column.name))
    .filter((column) => !names.has(column.name) && names.add(column.name))
    .slice(0, MAX_AXES);
}

/** A line for each run through its params and results. */
export function ParallelTab({ runs, labels, columns, view, change, highlight, hidden }: CompareParts) {
  const matches = compilePattern(view.rows);
  const axes = parallelAxes(columns, matches ?? (() => true));
  const scales = axes.map(makeScale);
  const width = 2 * MARGIN + SPACE * Math.max(1, axes.length - 1);
  const toX = (axis: number) => MARGIN + axis * SPACE;
  const toY = (at: number) => HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM);
  return (
    <>
      <div class={styles["bar"]}>
        <label>
          Axes
          <input
            type="search"
            placeholder="regular expression"
            value={view.rows}
            aria-invalid={matches === null}
            onInput={(event) => change({ rows: event.currentTarget.value })}
          />
        </label>
      </div>
      {matches === null && <p role="alert">{view.rows} is not a regular expression</p>}
      {axes.length < 2 ? (
        <Empty title="Fewer than two values differ between these runs" />
      ) : (
        <figure class={styles["figure"]} tabIndex={0} aria-label="parallel coordinates">
          <svg
            viewBox={`0 0 ${width} ${HEIGHT}`}
            width={width}
            role="img"
            aria-label={`${runs.length} runs by ${axes.map((axis) => axis.name).join(", ")}`}
          >
            {runs.map((run, place) => {
              if (hidden.has(run.id)) {
                return null;
              }
              const points = axes.flatMap((axis, index) => {
                const at = scales[index]?.place(axis.values[place] ?? null) ?? null;
                return at === null ? [] : [`${toX(index)},${toY(at)}`];
              });
              const isHighlighted = highlight.value === run.id;
              return (
                <polyline
                  key={run.id}
                  points={points.join(" ")}
                  fill="none"
                  stroke={curveColour(place, shownTheme.value)}
                  stroke-dasharray={curveDash(place).join(" ")}
                  stroke-width={isHighlighted ? 4 : 2}
                  opacity={highlight.value === null || isHighlighted ? 1 : 0.25}
                  onMouseEnter={() => (highlight.value = run.id)}
                  onMouseLeave={() => (highlight.value = null)}
                >
                  <title>
                    {labels[place]}:{" "}
                    {axes.map((axis) => `${axis.name} ${formatValue(axis.values[place] ?? null)}`).join(", ")}
                  </title>
                </polyline>
              );
            })}
            {axes.map((axis, index) => (
              <g key={axis.key}>
                <line class={styles["spine"]} x1={toX(index)} x2={toX(index)} y1={TOP} y2={HEIGHT - BOTTOM} />
                <text x={toX(index)} y={TOP - 16} text-anchor="middle" class={styles["axis"]}>
                  {axis.name.length > 18 ? `${axis.name.slice(0, 17)}…` : axis.name}
                  <title>{axis.key}</title>
                </text>
                {scales[index]?.ticks.map(({ at, text }) => (
                  <text key={text} x={toX(index) + 6} y={toY(at) + 4}>
                    {text.length > 16 ? `${text.slice(0, 15)}…` : text}
                  </text>
                ))}
              </g>
            ))}
          </svg>
        </figure>
      )}
    </>
  );
}
