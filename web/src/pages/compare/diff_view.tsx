import { useMemo, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { type DiffBlock, type DiffRow, diffTexts, foldRows, type Line } from "@/text/line_diff";
import styles from "./diff_view.module.css";

const PAGE_ROWS = 1000;
const SIGNS = { added: "+", removed: "−", same: " " } as const;

/** The lines of two texts, side by side or one below the other. Equal parts are folded, long texts come in pages. */
export function DiffView({
  before,
  after,
  isUnified,
}: {
  before: string;
  after: string;
  isUnified: boolean;
}) {
  const diff = useMemo(() => diffTexts(before, after), [before, after]);
  const blocks = useMemo(() => foldRows(diff.rows), [diff]);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const [limit, setLimit] = useState(PAGE_ROWS);
  const { shown, left } = cut(blocks, open, limit);
  if (diff.added + diff.removed === 0) {
    return <p class={styles["quiet"]}>The same lines in both runs</p>;
  }
  return (
    <>
      <p class={styles["quiet"]}>
        <span class={styles["plus"]}>+{diff.added}</span> <span class={styles["minus"]}>−{diff.removed}</span>{" "}
        lines{diff.isWhole && ": the files differ too much for a comparison by lines"}
      </p>
      <div class={styles["scroll"]} tabIndex={0} role="group" aria-label="lines">
        <table class={`${styles["lines"]} ${isUnified ? "" : styles["split"]}`}>
          {!isUnified && (
            <colgroup>
              <col class={styles["narrow"]} />
              <col />
              <col class={styles["narrow"]} />
              <col />
            </colgroup>
          )}
          <tbody>
            {shown.map((item) =>
              "fold" in item ? (
                <tr key={`fold ${item.fold}`}>
                  <td colSpan={4} class={styles["fold"]}>
                    <button type="button" onClick={() => setOpen(new Set([...open, item.fold]))}>
                      {item.count} equal lines
                    </button>
                  </td>
                </tr>
              ) : isUnified ? (
                <UnifiedRow key={item.key} row={item.row} />
              ) : (
                <SplitRow key={item.key} row={item.row} />
              ),
            )}
          </tbody>
        </table>
      </div>
      {left > 0 && (
        <Button onClick={() => setLimit(limit + PAGE_ROWS)}>
          Show {Math.min(left, PAGE_ROWS)} of {left} further lines
        </Button>
      )}
    </>
  );
}

type Item = { row: DiffRow; key: string } | { fold: number; count: number };

/** Returns what is shown of the blocks, up to a number of rows, and how many rows are left. */
function cut(blocks: readonly DiffBlock[], open: ReadonlySet<number>, limit: number) {
  const items = blocks.flatMap((block, index): Item[] => {
    if ("hidden" in block && !open.has(index)) {
      return [{ fold: index, count: block.hidden.length }];
    }
    const rows = "hidden" in block ? block.hidden : block.rows;
    return rows.map((row, place) => ({ row, key: `${index} ${place}` }));
  });
  return { shown: items.slice(0, limit), left: Math.max(0, items.length - limit) };
}

function SplitRow({ row }: { row: DiffRow }) {
  const isSame = row.kind === "same";
  return (
    <tr>
      <Side line={row.before} kind={isSame ? "same" : "removed"} />
      <Side line={row.after} kind={isSame ? "same" : "added"} />
    </tr>
  );
}

function UnifiedRow({ row }: { row: DiffRow }) {
  if (row.kind === "same") {
    return (
      <tr>
        <td class={styles["number"]}>{row.before?.number}</td>
        <Side line={row.after} kind="same" />
      </tr>
    );
  }
  return (
    <>
      {row.before && (
        <tr>
          <td class={styles["number"]}>{row.before.number}</td>
          <Side line={row.before} kind="removed" isUnnumbered />
        </tr>
      )}
      {row.after && (
        <tr>
          <td class={styles["number"]} />
          <Side line={row.after} kind="added" />
        </tr>
      )}
    </>
  );
}

/** A number and a line; empty where this side has none. */
function Side({
  line,
  kind,
  isUnnumbered = false,
}: {
  line: Line | null;
  kind: keyof typeof SIGNS;
  isUnnumbered?: boolean;
}) {
  if (line === null) {
    return <td colSpan={2} class={styles["none"]} />;
  }
  return (
    <>
      <td class={styles["number"]}>{isUnnumbered ? "" : line.number}</td>
      <td class={styles[kind]}>
        <span class={styles["sign"]}>{SIGNS[kind]}</span>
        {line.parts.map((part, index) =>
          part.isChanged ? <mark key={index}>{part.text}</mark> : <span key={index}>{part.text}</span>,
        )}
      </td>
    </>
  );
}
