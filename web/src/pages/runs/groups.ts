/** The lines of the table: runs, and a heading before the first run of each group. */
import { cellText, cellValue, type Run } from "./columns";

export type Line =
  { kind: "run"; run: Run } | { kind: "group"; text: string; count: number; isComplete: boolean };

/** Returns the lines for runs that are in the order of the group's column. The last group may go on in a page
 * that is not loaded yet. */
export function tableLines(runs: readonly Run[], group: string, now: number, isComplete: boolean): Line[] {
  if (group === "") {
    return runs.map((run) => ({ kind: "run", run }));
  }
  const lines: Line[] = [];
  const headings: Heading[] = [];
  for (const run of runs) {
    const text = cellText(group, cellValue(run, group, now), now);
    let heading = headings.at(-1);
    if (heading?.text !== text) {
      heading = { kind: "group", text, count: 0, isComplete: true };
      headings.push(heading);
      lines.push(heading);
    }
    heading.count += 1;
    lines.push({ kind: "run", run });
  }
  const last = headings.at(-1);
  if (last !== undefined) {
    last.isComplete = isComplete;
  }
  return lines;
}
