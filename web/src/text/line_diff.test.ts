import { expect, test } from "vitest";
import { diffTexts, foldRows, type DiffRow } from "./line_diff";

const short = ({ kind, before, after }: DiffRow) => [kind, before?.number ?? null, after?.number ?? null];

test("changed lines are paired, with the changed words marked", () => {
  const diff = diffTexts("import hop\nlr = 0.1\nend\n", "import hop\nlr = 0.5\nmore\nend");
  expect(diff.rows.map(short)).toEqual([
    ["same", 1, 1],
    ["changed", 2, 2],
    ["added", null, 3],
    ["same", 3, 4],
  ]);
  expect([diff.added, diff.removed, diff.isWhole]).toEqual([2, 1, false]);
  const marked = diff.rows[1]?.after?.parts.filter((part) => part.isChanged).map((part) => part.text);
  expect(marked?.join("")).toContain("5");
  expect(diff.rows[1]?.after?.parts.map((part) => part.text).join("")).toBe("lr = 0.5");
});

test("ends of lines of another system are no change, and an absent file is empty", () => {
  expect(diffTexts("a\r\nb\r\n", "a\nb\n").rows.every((row) => row.kind === "same")).toBe(true);
  expect(diffTexts("", "a\nb").rows.map(short)).toEqual([
    ["added", null, 1],
    ["added", null, 2],
  ]);
  expect(diffTexts("", "").rows).toEqual([]);
});

test("texts that differ too much are removed and added as a whole", () => {
  const many = (sign: string) => Array.from({ length: 3000 }, (_, i) => `${sign}${i}`).join("\n");
  const diff = diffTexts(many("a"), many("b"), 1);
  expect([diff.isWhole, diff.added, diff.removed]).toEqual([true, 3000, 3000]);
});

test("equal lines far from changes are folded", () => {
  const lines = Array.from({ length: 30 }, (_, i) => `line ${i}`);
  const { rows } = diffTexts(lines.join("\n"), lines.with(10, "other").join("\n"));
  expect(foldRows(rows).map((block) => ("rows" in block ? block.rows.length : -block.hidden.length))).toEqual(
    [-7, 7, -16],
  );
  expect(foldRows(diffTexts("a", "a").rows)).toHaveLength(1);
});
