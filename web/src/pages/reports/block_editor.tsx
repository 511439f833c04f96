import { Menu } from "@base-ui/react/menu";
import { Button } from "@/parts/button";
import buttonStyles from "@/parts/button.module.css";
import type { Block, BlockKind } from "./blocks";
import { KINDS } from "./blocks";
import { BlockForm } from "./block_form";
import { BlockView } from "./block_view";
import styles from "./report.module.css";

/** A block that is edited: its form, and below what readers see. Alt with an arrow moves it. */
export function BlockEditor({
  block,
  place,
  count,
  isDragged,
  onChange,
  onMove,
  onRemove,
  onDrag,
  onDrop,
}: {
  block: Block;
  place: number;
  count: number;
  isDragged: boolean;
  onChange: (block: Block) => void;
  onMove: (to: number) => void;
  onRemove: () => void;
  onDrag: (isStart: boolean) => void;
  onDrop: () => void;
}) {
  const name = `${KINDS[block.type]}, block ${place + 1} of ${count}`;
  return (
    <section
      class={`${styles["block"]} ${isDragged ? styles["dragged"] : ""}`}
      aria-label={name}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        onDrop();
      }}
      onKeyDown={(event) => {
        const by = event.altKey ? { ArrowUp: -1, ArrowDown: 1 }[event.key] : undefined;
        if (by !== undefined && place + by >= 0 && place + by < count) {
          event.preventDefault();
          event.stopPropagation();
          onMove(place + by);
        }
      }}
    >
      <header>
        <span
          class={styles["handle"]}
          draggable
          title="drag to move"
          aria-hidden="true"
          onDragStart={(event) => {
            event.dataTransfer?.setData("text/plain", name);
            onDrag(true);
          }}
          onDragEnd={() => onDrag(false)}
        >
          ⠿
        </span>
        <span class={styles["kind"]}>{KINDS[block.type]}</span>
        <Button
          kind="quiet"
          aria-label={`Move up: ${name}`}
          title="Alt ↑"
          disabled={place === 0}
          onClick={() => onMove(place - 1)}
        >
          ↑
        </Button>
        <Button
          kind="quiet"
          aria-label={`Move down: ${name}`}
          title="Alt ↓"
          disabled={place === count - 1}
          onClick={() => onMove(place + 1)}
        >
          ↓
        </Button>
        <Button kind="quiet" aria-label={`Remove: ${name}`} onClick={onRemove}>
          Remove
        </Button>
      </header>
      <BlockForm block={block} onChange={onChange} />
      {block.type !== "text" && <BlockView block={block} />}
    </section>
  );
}

/** A button with the kinds of blocks. */
export function AddBlock({ label, onAdd }: { label: string; onAdd: (kind: BlockKind) => void }) {
  return (
    <Menu.Root>
      <Menu.Trigger className={`${buttonStyles["button"]} ${buttonStyles["quiet"]}`}>{label}</Menu.Trigger>
      <Menu.Portal>
        <Menu.Positioner sideOffset={4} align="start" className={styles["menuPlace"]}>
          <Menu.Popup className={styles["menu"]}>
            {(Object.keys(KINDS) as BlockKind[]).map((kind) => (
              <Menu.Item key={kind} className={styles["menuItem"]} onClick={() => onAdd(kind)}>
                {KINDS[kind]}
              </Menu.Item>
            ))}
          </Menu.Popup>
        </Menu.Positioner>
      </Menu.Portal>
    </Menu.Root>
  );
}
