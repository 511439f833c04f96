import { Popover } from "@base-ui/react/popover";
import { useRef, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import popoverStyles from "@/parts/popover.module.css";
import { formatNumber } from "@/text/format";
import { type Brush, isBrushed, type PlacedAxis } from "./parallel_axes";
import styles from "./parallel_chart.module.css";

const DRAG_PX = 5; // less is a click
const MAX_CHOICES = 100;

interface Props {
  axis: PlacedAxis;
  /** The place of the axis in the chart, in pixels. */
  x: number;
  width: number;
  brush: Brush | null;
  isColour: boolean;
  onBrush: (brush: Brush | null) => void;
  onLog: (isLog: boolean) => void;
  onColour: (isColour: boolean) => void;
  onStep: (by: -1 | 1) => void;
  onDrop: (x: number) => void;
  onRemove: (() => void) | null;
}

/** The name of an axis: dragged or moved by the arrow keys; a click opens its settings. */
export function ParallelAxisHead({ axis, x, width, brush, ...props }: Props) {
  const [shift, setShift] = useState(0);
  const drag = useRef<{ from: number; isMoving: boolean } | null>(null);
  return (
    <div
      role="listitem"
      class={styles["head"]}
      style={{ left: `${x}px`, width: `${width}px`, transform: `translateX(calc(-50% + ${shift}px))` }}
    >
      <Popover.Root>
        <Popover.Trigger
          className={`${styles["name"]} ${brush ? styles["brushed"] : ""} ${shift !== 0 ? styles["dragged"] : ""}`}
          aria-label={`axis ${axis.name}`}
          aria-keyshortcuts="ArrowLeft ArrowRight"
          title={`${axis.key} (drag or ← → to move)`}
          onPointerDown={(event) => {
            drag.current = { from: event.clientX, isMoving: false };
            event.currentTarget.setPointerCapture(event.pointerId);
          }}
          onPointerMove={(event) => {
            const by = event.clientX - (drag.current?.from ?? event.clientX);
            if (drag.current && (drag.current.isMoving || Math.abs(by) >= DRAG_PX)) {
              drag.current.isMoving = true;
              setShift(by);
            }
          }}
          onPointerUp={() => {
            if (drag.current?.isMoving) {
              setShift(0);
              props.onDrop(x + shift);
            } else {
              drag.current = null;
            }
          }}
          onPointerCancel={() => {
            drag.current = null;
            setShift(0);
          }}
          onClickCapture={(event) => {
            if (drag.current?.isMoving) {
              event.stopPropagation(); // the end of a drag
              event.preventDefault();
            }
            drag.current = null;
          }}
          onKeyDown={(event) => {
            const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] as -1 | 1 | undefined;
            if (by !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
              event.preventDefault();
              event.stopPropagation();
              props.onStep(by);
            }
          }}
        >
          {axis.name}
        </Popover.Trigger>
        <Popover.Portal>
          <Popover.Positioner sideOffset={4} className={popoverStyles["positioner"]}>
            <Popover.Popup
              className={`${popoverStyles["popup"]} ${styles["menu"]}`}
              aria-label={`axis ${axis.name}`}
            >
              <h3>{axis.key}</h3>
              {axis.kind === "category" ? (
                <Texts axis={axis} brush={brush} onBrush={props.onBrush} />
              ) : (
                <Limits key={JSON.stringify(brush)} axis={axis} brush={brush} onBrush={props.onBrush} />
              )}
              {axis.kind !== "category" && (
                <label>
                  <input
                    type="checkbox"
                    checked={axis.kind === "log"}
                    disabled={!axis.canBeLog}
                    onChange={(event) => props.onLog((event.target as HTMLInputElement).checked)}
                  />
                  Log scale{axis.canBeLog ? "" : " (needs values above 0)"}
                </label>
              )}
              <label>
                <input
                  type="checkbox"
                  checked={props.isColour}
                  onChange={(event) => props.onColour((event.target as HTMLInputElement).checked)}
                />
                Colours by this
              </label>
              <div class={styles["buttons"]}>
                <Button disabled={brush === null} onClick={() => props.onBrush(null)}>
                  Select all
                </Button>
                {props.onRemove && <Button onClick={props.onRemove}>Remove axis</Button>}
              </div>
            </Popover.Popup>
          </Popover.Positioner>
        </Popover.Portal>
      </Popover.Root>
    </div>
  );
}

type BrushProps = Pick<Props, "axis" | "brush" | "onBrush">;

/** The limits of a selection of numbers, as text. */
function Limits({ axis, brush, onBrush }: BrushProps) {
  const isSet = brush !== null && "low" in brush;
  const low = useRef<HTMLInputElement>(null);
  const high = useRef<HTMLInputElement>(null);
  const apply = () => {
    const read = (input: HTMLInputElement | null, otherwise: number) =>
      input === null || input.value.trim() === "" || !Number.isFinite(Number(input.value))
        ? otherwise
        : Number(input.value);
    const isEmpty = low.current?.value.trim() === "" && high.current?.value.trim() === "";
    const [from, to] = [read(low.current, axis.low), read(high.current, axis.high)];
    onBrush(isEmpty ? null : { low: Math.min(from, to), high: Math.max(from, to) });
  };
  return (
    <form
      class={styles["limits"]}
      onSubmit={(event) => {
        event.preventDefault();
        apply();
      }}
    >
      <label>
        From
        <input
          ref={low}
          inputMode="decimal"
          placeholder={formatNumber(axis.low)}
          defaultValue={isSet ? String(brush.low) : ""}
        />
      </label>
      <label>
        to
        <input
          ref={high}
          inputMode="decimal"
          placeholder={formatNumber(axis.high)}
          defaultValue={isSet ? String(brush.high) : ""}
        />
      </label>
      <Button type="submit">Select</Button>
    </form>
  );
}

/** The texts of an axis, each with a box. */
function Texts({ axis, brush, onBrush }: BrushProps) {
  return (
    <div class={styles["texts"]} role="group" aria-label="values">
      {axis.texts.slice(0, MAX_CHOICES).map((text) => {
        const isChosen = brush === null || isBrushed(brush, text);
        return (
          <label key={text}>
            <input
              type="checkbox"
              checked={isChosen}
              onChange={() => {
                const chosen = axis.texts.filter((each) =>
                  each === text ? !isChosen : brush === null || isBrushed(brush, each),
                );
                onBrush(
                  chosen.length === axis.texts.length || chosen.length === 0 ? null : { texts: chosen },
                );
              }}
            />
            <span>{text}</span>
          </label>
        );
      })}
      {axis.texts.length > MAX_CHOICES && <p>and {axis.texts.length - MAX_CHOICES} more</p>}
    </div>
  );
}
