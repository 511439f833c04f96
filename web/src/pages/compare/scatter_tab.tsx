import { useLocation } from "wouter-preact";
import { curveColour } from "@/charts/palette";
import { shownTheme } from "@/charts/shown_theme";
import { Empty } from "@/parts/notices";
import { type Column, formatValue, isDifferent, isNumeric } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { makeScale } from "./scale";

const [WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN] = [900, 480, 90, 46, 16];

/** Returns the columns at first: a param that differs, and a value of the summary or the newest one. */
export function defaultAxes(columns: readonly Column[]): { x: Column | undefined; y: Column | undefined } {
  const numeric = columns.filter((column) => isNumeric(column) && isDifferent(column));
  const x = numeric.find((column) => column.section === "Params") ?? numeric[0];
  const results = numeric.filter(
    (column) => column !== x && ["Summary", "Latest metrics"].includes(column.section),
  );
  return { x, y: results[0] ?? numeric.find((column) => column !== x) };
}

/** A point for each run, by any two of its values. */
export function ScatterTab({ runs, labels, columns, view, change, highlight, hidden }: CompareParts) {
  const [, navigate] = useLocation();
  const usual = defaultAxes(columns);
  const x = columns.find((column) => column.key === view.scatterX) ?? usual.x;
  const y = columns.find((column) => column.key === view.scatterY) ?? usual.y;
  const options = columns.map((column) => (
    <option key={column.key} value={column.key}>
      {column.key}
    </option>
  ));
  if (!x || !y) {
    return <Empty title="These runs have no values that differ" />;
  }
  const [xScale, yScale] = [makeScale(x), makeScale(y)];
  const toX = (at: number) => LEFT + 12 + at * (WIDTH - LEFT - MARGIN - 24);
  const toY = (at: number) => HEIGHT - BOTTOM - 12 - at * (HEIGHT - BOTTOM - MARGIN - 24);
  return (
    <>
      <div class={styles["bar"]} role="group" aria-label="axes">
        <label>
          X axis
          <select value={x.key} onChange={(event) => change({ scatterX: event.currentTarget.value })}>
            {options}
          </select>
        </label>
        <label>
          Y axis
          <select value={y.key} onChange={(event) => change({ scatterY: event.currentTarget.value })}>
            {options}
          </select>
        </label>
      </div>
      <figure class={styles["figure"]}>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          width={WIDTH}
          role="group"
          aria-label={`${y.name} by ${x.name}`}
        >
          {yScale.ticks.map(({ at, text }) => (
            <g key={text}>
              <line class={styles["rule"]} x1={LEFT} x2={WIDTH - MARGIN} y1={toY(at)} y2={toY(at)} />
              <text x={LEFT - 8} y={toY(at) + 4} text-anchor="end">
                {text}
              </text>
            </g>
          ))}
          {xScale.ticks.map(({ at, text }) => (
            <g key={text}>
              <line class={styles["rule"]} x1={toX(at)} x2={toX(at)} y1={MARGIN} y2={HEIGHT - BOTTOM} />
              <text x={toX(at)} y={HEIGHT - BOTTOM + 18} text-anchor="middle">
                {text}
              </text>
            </g>
          ))}
          <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 6} text-anchor="middle" class={styles["axis"]}>
            {x.key}
          </text>
          <text
            transform={`translate(16 ${(HEIGHT - BOTTOM) / 2}) rotate(-90)`}
            text-anchor="middle"
            class={styles["axis"]}
          >
            {y.key}
          </text>
          {runs.map((run, place) => {
            const [px, py] = [xScale.place(x.values[place] ?? null), yScale.place(y.values[place] ?? null)];
            if (px === null || py === null || hidden.has(run.id)) {
              return null;
            }
            const text = `${labels[place]}: ${x.name} ${formatValue(x.values[place] ?? null)}, ${y.name} ${formatValue(y.values[place] ?? null)}`;
            return (
              <a
                key={run.id}
                href={`/runs/${run.id}`}
                aria-label={text}
                onClick={(event) => {
                  event.preventDefault();
                  navigate(`/runs/${run.id}`);
                }}
                onMouseEnter={() => (highlight.value = run.id)}
                onMouseLeave={() => (highlight.value = null)}
              >
                <circle
                  cx={toX(px)}
                  cy={toY(py)}
                  r={highlight.value === run.id ? 9 : 6}
                  fill={curveColour(place, shownTheme.value)}
                  class={styles["dot"]}
                >
                  <title>{text}</title>
                </circle>
              </a>
            );
          })}
        </svg>
      </figure>
    </>
  );
}
