/** The lines of two texts side by side, with what changed in them. */
import { diffArrays, diffWordsWithSpace } from "diff";

/** A part of a line; `isChanged`: the other line has something else here. */
export interface LinePart {
  text: string;
  isChanged: boolean;
}

export interface Line {
  number: number;
  parts: readonly LinePart[];
}

/** A pair of lines: both with `same` and `changed`, one of them else. */
export interface DiffRow {
  kind: "same" | "changed" | "added" | "removed";
  before: Line | null;
  after: Line | null;
}

/** Rows that are shown, or a number of equal lines that are not. */
export type DiffBlock = { rows: readonly DiffRow[] } | { hidden: readonly DiffRow[] };

export interface LineDiff {
  rows: readonly DiffRow[];
  added: number;
  removed: number;
  /** Whether the texts differ too much for a comparison by lines: all lines are removed and added then. */
  isWhole: boolean;
}

const LIMIT_MS = 1500;
const MAX_WORDS_LENGTH = 400; // of a line that is compared word by word
const MAX_WORD_ROWS = 2000;

const plain = (text: string): LinePart[] => [{ text, isChanged: false }];

function toLines(text: string): string[] {
  const lines = text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
  if (lines.at(-1) === "") {
    lines.pop();
  }
  return lines;
}

/** Returns the rows of two texts. */
export function diffTexts(before: string, after: string, limitMs = LIMIT_MS): LineDiff {
  const [old, now] = [toLines(before), toLines(after)];
  const found = diffArrays(old, now, { timeout: limitMs }) as
    { value: string[]; added?: boolean; removed?: boolean }[] | undefined;
  const changes = found ?? [
    { value: old, removed: true },
    { value: now, added: true },
  ];
  const rows: DiffRow[] = [];
  let [left, right, added, removed, worded] = [0, 0, 0, 0, 0];
  for (const [index, change] of changes.entries()) {
    const next = changes[index + 1];
    if (change.removed) {
      const others = next?.added ? next.value : [];
      removed += change.value.length;
      for (let line = 0; line < Math.max(change.value.length, others.length); line += 1) {
        const [one, two] = [change.value[line], others[line]];
        const [oneParts, twoParts] =
          one !== undefined && two !== undefined && found && (worded += 1) <= MAX_WORD_ROWS
            ? diffLine(one, two)
            : [plain(one ?? ""), plain(two ?? "")];
        rows.push({
          kind: one === undefined ? "added" : two === undefined ? "removed" : "changed",
          before: one === undefined ? null : { number: (left += 1), parts: oneParts },
          after: two === undefined ? null : { number: (right += 1), parts: twoParts },
        });
      }
      added += others.length;
    } else if (change.added) {
      if (changes[index - 1]?.removed) {
        continue; // paired with what was removed
      }
      added += change.value.length;
      for (const line of change.value) {
        rows.push({ kind: "added", before: null, after: { number: (right += 1), parts: plain(line) } });
      }
    } else {
      for (const line of change.value) {
        const parts = plain(line);
        rows.push({
          kind: "same",
          before: { number: (left += 1), parts },
          after: { number: (right += 1), parts },
        });
      }
    }
  }
  return { rows, added, removed, isWhole: found === undefined };
}

/** Returns the parts of two lines. Lines that have little in common are not marked word by word. */
function diffLine(before: string, after: string): [LinePart[], LinePart[]] {
  if (before.length > MAX_WORDS_LENGTH || after.length > MAX_WORDS_LENGTH) {
    return [plain(before), plain(after)];
  }
  const changes = diffWordsWithSpace(before, after);
  const common = changes
    .filter((change) => !change.added && !change.removed)
    .reduce((length, change) => length + change.value.trim().length, 0);
  if (common * 3 < Math.max(before.trim().length, after.trim().length)) {
    return [plain(before), plain(after)];
  }
  return [
    changes
      .filter((change) => !change.added)
      .map((change) => ({ text: change.value, isChanged: change.removed })),
    changes
      .filter((change) => !change.removed)
      .map((change) => ({ text: change.value, isChanged: change.added })),
  ];
}

/** Returns the rows in blocks: equal lines more than `context` lines away from each change are hidden. */
export function foldRows(rows: readonly DiffRow[], context = 3): DiffBlock[] {
  const isNear = new Uint8Array(rows.length);
  for (const [index, row] of rows.entries()) {
    if (row.kind !== "same") {
      isNear.fill(1, Math.max(0, index - context), Math.min(rows.length, index + context + 1));
    }
  }
  const blocks: DiffBlock[] = [];
  for (let begin = 0; begin < rows.length;) {
    let end = begin;
    while (end < rows.length && isNear[end] === isNear[begin]) {
      end += 1;
    }
    const part = rows.slice(begin, end);
    blocks.push(isNear[begin] === 1 ? { rows: part } : { hidden: part });
    begin = end;
  }
  return blocks;
}
