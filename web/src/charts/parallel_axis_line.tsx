import { useRef } from "preact/hooks";
import { type Brush, brushOf, brushPlaces, type PlacedAxis } from "./parallel_axes";
import styles from "./parallel_chart.module.css";

const STRIP_PX = 26; // where a drag begins
const EDGE_PX = 7; // from the end of a selection, to move this end
const CLICK_PX = 3;
const MAX_TEXT = 15;

interface Drag {
  kind: "new" | "move" | "low" | "high";
  from: number;
  start: readonly [number, number];
  isMoved: boolean;
}

interface Props {
  axis: PlacedAxis;
  x: number;
  top: number;
  length: number;
  brush: Brush | null;
  onBrush: (brush: Brush | null) => void;
}

/** An axis with its ticks. A drag along it selects values; a click beside the selection ends it. */
export function ParallelAxisLine({ axis, x, top, length, brush, onBrush }: Props) {
  const drag = useRef<Drag | null>(null);
  const places = brush && brushPlaces(axis, brush);
  const toY = (at: number) => top + (1 - at) * length;
  const placeOf = (event: PointerEvent) => {
    const strip = (event.currentTarget as Element).getBoundingClientRect();
    return 1 - (event.clientY - strip.top) / strip.height;
  };

  const begin = (event: PointerEvent) => {
    if (event.button !== 0) {
      return;
    }
    event.preventDefault();
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    const from = placeOf(event);
    const [low, high] = places ?? [from, from];
    const edge = EDGE_PX / length;
    const kind =
      places === null
        ? "new"
        : Math.abs(from - high) < edge
          ? "high"
          : Math.abs(from - low) < edge
            ? "low"
            : low < from && from < high
              ? "move"
              : "new";
    drag.current = { kind, from, start: [low, high], isMoved: false };
  };
  const move = (event: PointerEvent) => {
    const now = drag.current;
    if (!now) {
      return;
    }
    const at = placeOf(event);
    now.isMoved ||= Math.abs(at - now.from) * length >= CLICK_PX;
    if (now.isMoved) {
      onBrush(brushOf(axis, ...dragged(now, at)));
    }
  };
  const end = () => {
    if (drag.current && !drag.current.isMoved && drag.current.kind === "new") {
      onBrush(null);
    }
    drag.current = null;
  };
  return (
    <g>
      <line class={styles["spine"]} x1={x} x2={x} y1={top} y2={top + length} />
      {axis.ticks.map(({ at, text }) => (
        <g key={text}>
          <line class={styles["spine"]} x1={x} x2={x + 5} y1={toY(at)} y2={toY(at)} />
          <text x={x + 8} y={toY(at) + 4}>
            {text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT - 1)}…` : text}
            <title>{text}</title>
          </text>
        </g>
      ))}
      {places && (
        <rect
          class={styles["brush"]}
          x={x - 8}
          width={16}
          y={toY(places[1])}
          height={Math.max(2, (places[1] - places[0]) * length)}
          rx={3}
        />
      )}
      <rect
        class={styles["strip"]}
        data-axis={axis.key}
        x={x - STRIP_PX / 2}
        width={STRIP_PX}
        y={top}
        height={length}
        onPointerDown={begin}
        onPointerMove={move}
        onPointerUp={end}
        onPointerCancel={end}
      />
    </g>
  );
}

/** Returns the ends of the selection while the pointer is at a place. */
function dragged({ kind, from, start: [low, high] }: Drag, at: number): [number, number] {
  if (kind === "low") {
    return [at, high];
  }
  if (kind === "high") {
    return [low, at];
  }
  if (kind === "new") {
    return [from, at];
  }
  const by = Math.min(1 - high, Math.max(-low, at - from));
  return [low + by, high + by];
}
