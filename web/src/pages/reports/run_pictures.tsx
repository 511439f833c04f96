/** Small pictures of runs by their values: the same ones that an exported report has. */
import { CurveSwatch } from "@/charts/curve_swatch";
import { curveColour, curveDash } from "@/charts/palette";
import { formatTick, roundTicks } from "@/charts/axis_format";
import { shownTheme } from "@/charts/shown_theme";
import { serverNow } from "@/api/answers";
import type { Run } from "@/api/runs";
import { cellValue, columnTitle } from "@/pages/runs/columns";
import { Name } from "@/parts/name";
import { formatCount, formatNumber } from "@/text/format";
import styles from "./report.module.css";
import { runLabel } from "./report_runs";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [760, 300, 64, 14, 12, 40];

/** Returns a finite number of a run, else null. */
export function numberOf(run: Run, column: string): number | null {
  const value = cellValue(run, column, serverNow());
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

interface Axis {
  place: (value: number) => number;
  ticks: { at: number; text: string }[];
}

function makeAxis(values: readonly number[], count: number): Axis {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const place = (value: number) => (high > low ? (value - low) / (high - low) : 0.5);
  const ticks = high > low ? roundTicks(low, high, count) : [low];
  return { place, ticks: ticks.map((tick) => ({ at: place(tick), text: formatTick(tick) })) };
}

export function ScatterPicture({ runs, x, y }: { runs: readonly Run[]; x: string; y: string }) {
  const points = runs.flatMap((run, colour) => {
    const [px, py] = [numberOf(run, x), numberOf(run, y)];
    return px === null || py === null ? [] : [{ run, colour, x: px, y: py }];
  });
  if (points.length === 0) {
    return <p class={styles["nothing"]}>None of the runs has both numbers.</p>;
  }
  const [xAxis, yAxis] = [
    makeAxis(
      points.map((point) => point.x),
      6,
    ),
    makeAxis(
      points.map((point) => point.y),
      5,
    ),
  ];
  const toX = (at: number) => LEFT + 10 + at * (WIDTH - LEFT - RIGHT - 20);
  const toY = (at: number) => HEIGHT - BOTTOM - 10 - at * (HEIGHT - BOTTOM - TOP - 20);
  const [xName, yName] = [columnTitle(x), columnTitle(y)];
  return (
    <figure class={styles["picture"]} tabIndex={0}>
      <figcaption>
        {yName} by {xName}
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label={`${formatCount(points.length, "run")}: ${yName} by ${xName}`}
      >
        {yAxis.ticks.map(({ at, text }) => (
          <g key={text}>
            <line class={styles["rule"]} x1={LEFT} x2={WIDTH - RIGHT} y1={toY(at)} y2={toY(at)} />
            <text x={LEFT - 6} y={toY(at) + 4} text-anchor="end">
              {text}
            </text>
          </g>
        ))}
        {xAxis.ticks.map(({ at, text }) => (
          <text key={text} x={toX(at)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
            {text}
          </text>
        ))}
        <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 6} text-anchor="middle">
          {xName}
        </text>
        {points.map((point) => (
          <circle
            key={point.run.id}
            cx={toX(xAxis.place(point.x))}
            cy={toY(yAxis.place(point.y))}
            r={5}
            fill={curveColour(point.colour, shownTheme.value)}
          >
            <title>
              {`${runLabel(point.run)}: ${xName} ${formatNumber(point.x)}, ${yName} ${formatNumber(point.y)}`}
            </title>
          </circle>
        ))}
      </svg>
    </figure>
  );
}

export function ParallelPicture({ runs, columns }: { runs: readonly Run[]; columns: readonly string[] }) {
  const axes = columns.flatMap((column) => {
    const values = runs.map((run) => numberOf(run, column));
    const numbers = values.filter((value) => value !== null);
    return numbers.length === 0 ? [] : [{ column, values, axis: makeAxis(numbers, 4) }];
  });
  if (axes.length === 0) {
    return <p class={styles["nothing"]}>None of the columns holds numbers.</p>;
  }
  const [top, bottom] = [34, HEIGHT - 16];
  const toX = (index: number) => LEFT + ((WIDTH - LEFT - 60) * index) / Math.max(1, axes.length - 1);
  const toY = (at: number) => bottom - at * (bottom - top);
  const names = axes.map(({ column }) => columnTitle(column));
  const missing = columns
    .filter((column) => !axes.some((axis) => axis.column === column))
    .map((column) => columnTitle(column));
  return (
    <figure class={styles["picture"]} tabIndex={0}>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label={`${formatCount(runs.length, "run")} by ${names.join(", ")}`}
      >
        {runs.map((run, colour) => (
          <path
            key={run.id}
            class={styles["line"]}
            stroke={curveColour(colour, shownTheme.value)}
            stroke-dasharray={curveDash(colour).join(" ")}
            d={linePath(
              axes.map(({ values, axis }, index) => {
                const value = values[colour] ?? null;
                return value === null ? null : [toX(index), toY(axis.place(value))];
              }),
            )}
          >
            <title>{runLabel(run)}</title>
          </path>
        ))}
        {axes.map(({ column, axis }, index) => (
          <g key={column}>
            <line class={styles["axis"]} x1={toX(index)} x2={toX(index)} y1={top} y2={bottom} />
            <text x={toX(index)} y={16} text-anchor="middle">
              {columnTitle(column)}
            </text>
            {axis.ticks.map(({ at, text }) => (
              <text key={text} x={toX(index) - 5} y={toY(at) + 4} text-anchor="end">
                {text}
              </text>
            ))}
          </g>
        ))}
      </svg>
      <ul class={styles["legend"]} aria-label="runs">
        {runs.map((run, colour) => (
          <li key={run.id}>
            <CurveSwatch colour={colour} /> <Name text={runLabel(run)} />
          </li>
        ))}
      </ul>
      {missing.length > 0 && (
        <p class={styles["nothing"]}>Not drawn, since they hold no numbers: {missing.join(", ")}</p>
      )}
    </figure>
  );
}

/** Returns the lines between points; null is a gap. */
export function linePath(points: readonly (readonly [number, number] | null)[]): string {
  return points
    .map((point, index) =>
      point === null
        ? ""
        : `${index === 0 || points[index - 1] === null ? "M" : "L"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`,
    )
    .join("");
}
