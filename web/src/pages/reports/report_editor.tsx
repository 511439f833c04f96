import { useEffect, useRef, useState } from "preact/hooks";
import { session as login } from "@/api/session";
import { Button } from "@/parts/button";
import fieldStyles from "@/parts/field.module.css";
import { AddBlock, BlockEditor } from "./block_editor";
import {
  type Block,
  type BlockKind,
  type Content,
  moveItem,
  newBlock,
  type Report,
  runsBefore,
} from "./blocks";
import styles from "./report.module.css";

interface Removed {
  block: Block;
  place: number;
}

/** Title, access and blocks of a report, as fields. */
export function ReportEditor({
  report,
  content,
  onChange,
}: {
  report: Report;
  content: Content;
  onChange: (part: Partial<Content>) => void;
}) {
  const { blocks } = content;
  const [removed, setRemoved] = useState<Removed | null>(null);
  const [dragged, setDragged] = useState<number | null>(null);
  const list = useRef<HTMLDivElement>(null);
  const [focus, setFocus] = useState<number | null>(null);
  // a key for each block that stays with it as it moves, so that the focus and the charts do
  const keys = useRef<number[]>([]);
  const last = useRef(0);
  while (keys.current.length < blocks.length) {
    keys.current.push((last.current += 1));
  }
  keys.current.length = blocks.length;

  useEffect(() => {
    if (focus !== null) {
      const fields = list.current?.querySelectorAll(":scope > section")[focus];
      fields?.querySelector<HTMLElement>("textarea, input, button:not([disabled])")?.focus();
      setFocus(null);
    }
  }, [focus]);

  const move = (from: number, to: number) => {
    keys.current = moveItem(keys.current, from, to);
    onChange({ blocks: moveItem(blocks, from, to) });
  };
  const insert = (block: Block, place: number) => {
    keys.current.splice(place, 0, (last.current += 1));
    onChange({ blocks: [...blocks.slice(0, place), block, ...blocks.slice(place)] });
  };
  const add = (kind: BlockKind, place: number) => {
    insert(newBlock(kind, runsBefore(blocks, place)), place);
    setFocus(place);
  };
  return (
    <div class={styles["editor"]}>
      <div class={styles["head"]}>
        <label class={fieldStyles["label"]}>
          Title
          <input
            class={`${fieldStyles["input"]} ${styles["title"]}`}
            value={content.title}
            maxLength={200}
            placeholder="What the report is about"
            onInput={(event) => onChange({ title: event.currentTarget.value })}
          />
        </label>
        <label class={fieldStyles["label"]}>
          Other users
          <select
            class={fieldStyles["input"]}
            value={content.access}
            disabled={report.user !== login.value?.user}
            onChange={(event) => onChange({ access: event.currentTarget.value as Content["access"] })}
          >
            <option value="private">see nothing of it</option>
            <option value="read">may read it</option>
            <option value="write">may change it</option>
          </select>
        </label>
      </div>
      <div ref={list} class={styles["blocks"]}>
        {blocks.map((block, place) => (
          <BlockEditor
            key={keys.current[place]}
            block={block}
            place={place}
            count={blocks.length}
            isDragged={dragged === place}
            onChange={(next) => onChange({ blocks: blocks.map((each, at) => (at === place ? next : each)) })}
            onMove={(to) => {
              move(place, to);
              setFocus(to);
            }}
            onRemove={() => {
              keys.current.splice(place, 1);
              onChange({ blocks: blocks.filter((_, at) => at !== place) });
              setRemoved({ block, place });
            }}
            onDrag={(isStart) => setDragged(isStart ? place : null)}
            onDrop={() => {
              if (dragged !== null && dragged !== place) {
                move(dragged, place);
              }
              setDragged(null);
            }}
          />
        ))}
      </div>
      {removed !== null && (
        <p role="status" class={styles["notice"]}>
          The block was removed.
          <Button
            onClick={() => {
              insert(removed.block, Math.min(removed.place, blocks.length));
              setRemoved(null);
            }}
          >
            Undo
          </Button>
        </p>
      )}
      <AddBlock label="+ Add block" onAdd={(kind) => add(kind, blocks.length)} />
    </div>
  );
}
