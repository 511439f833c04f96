/** The frame of a chart that can be pinned, moved by keys or by dragging, and removed. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import styles from "./panel.module.css";

let dragged: { name: string; kind: string } | null = null; // the data of a drag cannot be read before its end

interface Props {
  name: string;
  /** Panels of the same kind change places. */
  kind: "metric" | "pair";
  isBusy?: boolean;
  isPinned?: boolean;
  onPin?: () => void;
  /** Absent where the panel has no place of its own. */
  onMove?: { before: (() => void) | null; after: (() => void) | null } | null;
  /** Called with the name of the panel that was dropped on this. */
  onDrop: (name: string) => void;
  onRemove?: () => void;
  children: ComponentChildren;
}

export function Panel({
  name,
  kind,
  isBusy,
  isPinned = false,
  onPin,
  onMove,
  onDrop,
  onRemove,
  children,
}: Props) {
  const [isTarget, setTarget] = useState(false);
  const accepts = () => dragged !== null && dragged.kind === kind && dragged.name !== name;
  return (
    <section
      class={`${styles["panel"]} ${isTarget ? styles["target"] : ""}`}
      aria-label={name}
      aria-busy={isBusy}
      onDragOver={(event) => {
        if (accepts()) {
          event.preventDefault();
          setTarget(true);
        }
      }}
      onDragLeave={() => setTarget(false)}
      onDrop={(event) => {
        setTarget(false);
        if (dragged && accepts()) {
          event.preventDefault();
          onDrop(dragged.name);
        }
      }}
    >
      <header
        draggable
        title={`${name} (drag to move)`}
        onDragStart={(event) => {
          dragged = { name, kind };
          event.dataTransfer?.setData("text/plain", name);
        }}
        onDragEnd={() => {
          dragged = null;
        }}
      >
        <h2>
          <Name text={name} />
        </h2>
        {onMove && (
          <>
            <Button
              kind="quiet"
              aria-label={`← ${name}`}
              title="to the front"
              disabled={onMove.before === null}
              onClick={() => onMove.before?.()}
            >
              ←
            </Button>
            <Button
              kind="quiet"
              aria-label={`→ ${name}`}
              title="to the back"
              disabled={onMove.after === null}
              onClick={() => onMove.after?.()}
            >
              →
            </Button>
          </>
        )}
        {onPin && (
          <Button
            kind="quiet"
            aria-pressed={isPinned}
            aria-label={`${isPinned ? "Unpin" : "Pin"} ${name}`}
            onClick={onPin}
          >
            {isPinned ? "Unpin" : "Pin"}
          </Button>
        )}
        {onRemove && (
          <Button kind="quiet" aria-label={`Remove ${name}`} onClick={onRemove}>
            Remove
          </Button>
        )}
      </header>
      {children}
    </section>
  );
}

/** Returns what moves a name among others by a place. */
export function moves(
  names: readonly string[],
  name: string,
  onMove: (by: -1 | 1) => void,
): { before: (() => void) | null; after: (() => void) | null } {
  return {
    before: names[0] === name ? null : () => onMove(-1),
    after: names.at(-1) === name ? null : () => onMove(1),
  };
}
