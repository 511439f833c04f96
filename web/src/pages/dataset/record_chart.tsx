import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import type { Board } from "@/api/datasets";
import { formatNumber } from "@/text/format";
import { frameOf, niceTicks, stepPath } from "./record_steps";
import styles from "./record_chart.module.css";

const HEIGHT = 220;
const LEFT = 64;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const TICK_PX = 48;

/** The results of runs over time, and the best one so far. The table below has the same values. */
export function RecordChart({ board }: { board: Board }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [, navigate] = useLocation();
  useEffect(() => {
    const element = box.current;
    if (element === null) {
      return;
    }
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const records = board.records.map((row) => ({
    ...row,
    at: Date.parse(row.submitted_at),
    value: Number(row.value),
  }));
  const isRecord = new Set(records.map((row) => row.run));
  const others = board.rows
    .filter((row) => !isRecord.has(row.run))
    .map((row) => ({ ...row, at: Date.parse(row.submitted_at), value: Number(row.value) }))
    .filter((row) => Number.isFinite(row.value));
  const frame = frameOf([...records, ...others]);
  const plot = { right: width - RIGHT, bottom: HEIGHT - BOTTOM };
  const x = (at: number) =>
    LEFT + ((at - (frame?.begin ?? 0)) / ((frame?.end ?? 1) - (frame?.begin ?? 0))) * (plot.right - LEFT);
  const y = (value: number) =>
    plot.bottom -
    ((value - (frame?.low ?? 0)) / ((frame?.high ?? 1) - (frame?.low ?? 0))) * (plot.bottom - TOP);
  const day = (at: number) => {
    const date = new Date(at);
    const isShort = frame !== null && frame.end - frame.begin < 2 * 86_400_000;
    return isShort
      ? date.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false })
      : date.toISOString().slice(0, 10);
  };
  const best = records.at(-1);
  return (
    <div ref={box} class={styles["box"]}>
      {frame !== null && width > LEFT + RIGHT && (
        <svg
          width={width}
          height={HEIGHT}
          role="img"
          aria-label={`best ${board.metric} so far, over time${best ? `: ${formatNumber(best.value)} now` : ""}`}
        >
          {niceTicks(frame.low, frame.high, (plot.bottom - TOP) / TICK_PX).map((tick) => (
            <g key={tick}>
              <line class={styles["grid"]} x1={LEFT} x2={plot.right} y1={y(tick)} y2={y(tick)} />
              <text class={styles["axis"]} x={LEFT - 8} y={y(tick) + 4} text-anchor="end">
                {formatNumber(tick)}
              </text>
            </g>
          ))}
          <text class={styles["axis"]} x={LEFT} y={HEIGHT - 6}>
            {day(frame.begin)}
          </text>
          <text class={styles["axis"]} x={plot.right} y={HEIGHT - 6} text-anchor="end">
            {day(frame.end)}
          </text>
          {others.map((row) => (
            <circle
              key={row.run}
              class={styles["run"]}
              cx={x(row.at)}
              cy={y(row.value)}
              r={3}
              onClick={() => navigate(`/runs/${row.name}`)}
            >
              <title>{`${row.name}: ${formatNumber(row.value)}`}</title>
            </circle>
          ))}
          <path
            class={styles["line"]}
            d={stepPath(
              records.map((row) => ({ x: x(row.at), y: y(row.value) })),
              plot.right,
            )}
          />
          {records.map((row) => (
            <circle
              key={row.run}
              class={styles["record"]}
              cx={x(row.at)}
              cy={y(row.value)}
              r={4}
              onClick={() => navigate(`/runs/${row.name}`)}
            >
              <title>{`${row.name}: ${formatNumber(row.value)}, the best then`}</title>
            </circle>
          ))}
        </svg>
      )}
    </div>
  );
}
