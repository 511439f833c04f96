/** The lines of the table: runs, and a heading before the first run of each group. */
import { cellText, cellValue, type Run } from "./columns";
import { groupKey, type GroupCounts } from "./server_counts";

interface Heading {
  kind: "group";
  text: string;
  count: number;
  isComplete: boolean;
}

export type Line = { kind: "run"; run: Run } | Heading;

/** Returns the lines for runs that are in the order of the group's column. The last group may go on in a page
 * that is not loaded yet: `counts` has the sizes that the server knows. */
export function tableLines(
  runs: readonly Run[],
  group: string,
  now: number,
  isComplete: boolean,
  counts: GroupCounts = new Map(),
): Line[] {
  if (group === "") {
    return runs.map((run) => ({ kind: "run", run }));
  }
  const lines: Line[] = [];
  const headings: Heading[] = [];
  const known = new Map<Heading, number | undefined>();
  for (const run of runs) {
    const value = cellValue(run, group, now);
    const text = cellText(group, value, now);
    let heading = headings.at(-1);
    if (heading?.text !== text) {
      heading = { kind: "group", text, count: 0, isComplete: true };
      headings.push(heading);
      known.set(heading, counts.get(groupKey(value)));
      lines.push(heading);
    }
    heading.count += 1;
    lines.push({ kind: "run", run });
  }
  const last = headings.at(-1);
  if (last !== undefined) {
    last.isComplete = isComplete;
  }
  for (const [heading, count] of known) {
    if (count !== undefined) {
      // events change the loaded runs before the next counting
      heading.count = Math.max(count, heading.count);
      heading.isComplete = true;
    }
  }
  return lines;
}
