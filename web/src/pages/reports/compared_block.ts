/** What the compare page shows, as a block of a report. */
import type { Column } from "@/pages/compare/columns";
import type { CompareView } from "@/pages/compare/compare_view";
import type { Block } from "./blocks";

const MAX_METRICS = 24;
const MAX_COLUMNS = 50;
const FIELDS: ReadonlySet<string> = new Set(["phase", "label"]);

/** Returns the name of a compared column in the table of runs; null for one that it does not have. */
export function reportColumn({
  key,
  section,
  name,
}: Pick<Column, "key" | "section" | "name">): string | null {
  switch (section) {
    case "Params":
    case "Tags":
      return key;
    case "Summary":
    case "Latest metrics":
      return `metrics.${name}`;
    default:
      return FIELDS.has(name) && section === "Run" ? name : null;
  }
}

/** Returns the block of the shown tab. Of a tab that reports do not have: a table of its runs. metrics: the shown ones, in their order. columns: those that differ first. */
export function comparedBlock(
  view: CompareView,
  runs: readonly string[],
  metrics: readonly string[],
  columns: readonly Column[],
): Block {
  const find = (key: string) => {
    const column = columns.find((each) => each.key === key);
    return (column && reportColumn(column)) ?? "";
  };
  const names = [...new Set(columns.map(reportColumn).filter((name) => name !== null))];
  const base = { title: "", runs: [...runs] };
  switch (view.tab) {
    case "code":
    case "environment":
    case "table":
      return { ...base, type: "table", columns: ["name", ...names].slice(0, MAX_COLUMNS) };
    case "parallel":
      return { ...base, type: "parallel", columns: names.slice(0, MAX_METRICS) };
    case "scatter":
      return { ...base, type: "scatter", x: find(view.scatterX), y: find(view.scatterY) };
    case "media":
      return { ...base, type: "media", names: [], steps: view.step === null ? [] : [view.step] };
    case "curves":
      return {
        ...base,
        type: "curves",
        metrics: metrics.slice(0, MAX_METRICS),
        x: view.x,
        smoothing: Math.min(0.99, view.smoothing),
        log_x: view.isLogX,
        log_y: view.isLogY,
        group: find(view.group),
      };
  }
}
