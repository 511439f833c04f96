/** The blocks of a report. */
import type { Schemas } from "@/api/client";

export type Report = Schemas["ReportOut"];
type Complete<T> = T extends unknown ? { [Key in keyof T]-?: Exclude<T[Key], undefined> } : never;
export type Block = Complete<Report["blocks"][number]>;
export type BlockKind = Block["type"];
export type BlockOf<Kind extends BlockKind> = Extract<Block, { type: Kind }>;
export type RunsBlock = Extract<Block, { runs: string[] }>;

/** What an editor changes. */
export interface Content {
  title: string;
  access: Report["access"];
  blocks: Block[];
}

export const KINDS: Readonly<Record<BlockKind, string>> = {
  text: "Text",
  curves: "Curves",
  table: "Table of runs",
  scatter: "Scatter",
  parallel: "Parallel coordinates",
  media: "Media",
  leaderboard: "Leaderboard",
};

/** Returns an empty block. runs: those of the block before, which the new one most likely shows as well. */
export function newBlock(kind: BlockKind, runs: string[] = []): Block {
  switch (kind) {
    case "text":
      return { type: kind, text: "" };
    case "curves":
      return {
        type: kind,
        title: "",
        runs,
        metrics: [],
        x: "step",
        smoothing: 0,
        log_x: false,
        log_y: false,
        group: "",
      };
    case "table":
    case "parallel":
      return { type: kind, title: "", runs, columns: [] };
    case "scatter":
      return { type: kind, title: "", runs, x: "", y: "" };
    case "media":
      return { type: kind, title: "", runs, names: [], steps: [] };
    case "leaderboard":
      return { type: kind, title: "", dataset: null, metric: "", limit: 10 };
  }
}

export const contentOf = (report: Report): Content => ({
  title: report.title,
  access: report.access,
  blocks: report.blocks as Block[], // the server sends each field
});

export const isSame = (a: Content, b: Content): boolean =>
  a.title === b.title && a.access === b.access && JSON.stringify(a.blocks) === JSON.stringify(b.blocks);

/** Returns the ids of all runs of blocks, each once. */
export function runsOf(blocks: readonly Block[]): string[] {
  return [...new Set(blocks.flatMap((block) => ("runs" in block ? block.runs : [])))];
}

/** Returns the runs of the last block with runs before a place, else of any. */
export function runsBefore(blocks: readonly Block[], place: number): string[] {
  const found =
    blocks.slice(0, place).findLast((block) => "runs" in block) ?? blocks.find((block) => "runs" in block);
  return found && "runs" in found ? [...found.runs] : [];
}

/** Returns the items with one of them at another place. */
export function moveItem<Item>(items: readonly Item[], from: number, to: number): Item[] {
  const moved = [...items];
  const [item] = moved.splice(from, 1);
  if (item !== undefined) {
    moved.splice(to, 0, item);
  }
  return moved;
}

/** Returns the Markdown of a report's blocks. */
export function textsOf(blocks: readonly { type: string; text?: string }[]): string[] {
  return blocks.flatMap(({ type, text }) => (type === "text" && text ? [text] : []));
}
