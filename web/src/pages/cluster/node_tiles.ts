/** What the heat map shows of each node. */
import type { Schemas } from "@/api/client";

export type Node = Schemas["NodeOut"];
export type Allocation = Schemas["AllocationOut"];
type HeldGpu = Schemas["HeldGpuOut"];

export type NodeState = "open" | "cordoned" | "draining" | "lost" | "out of service";
export type ColourBy = "use" | "temperature" | "user" | "queue";
export const COLOUR_BY: readonly ColourBy[] = ["use", "temperature", "user", "queue"];

/** A GPU, or the CPUs or the memory of a node. `level`: 0 to 1; null: it is not measured. */
export interface Cell {
  key: string;
  title: string;
  heldPart: number; // 0 to 1
  level: number | null;
  group: string; // the user or queue that holds it, "" for none or several
}

export interface Tile {
  node: Node;
  state: NodeState;
  reason: string;
  cells: readonly Cell[];
  runs: readonly Allocation[];
}

const HOT_CELSIUS = 90;
const COLD_CELSIUS = 30;

/** Returns the state in one word. A cordoned node that runs are asked to leave is draining. */
export function nodeState(node: Node, runs: readonly Allocation[]): NodeState {
  if (!node.ready) {
    return "lost";
  }
  if (node.cordoned) {
    return runs.some((run) => run.stopping) ? "draining" : "cordoned";
  }
  return node.trouble === "" ? "open" : "out of service";
}

/** Returns why no run starts on the node, "" if some may. */
export function stateReason(node: Node): string {
  return [node.cordon_reason, node.trouble, node.not_ready].filter((text) => text !== "").join("; ");
}

/** Returns a tile for each node, in the order of the nodes. */
export function makeTiles(nodes: readonly Node[], allocations: readonly Allocation[], by: ColourBy): Tile[] {
  const byNode = new Map<string, Allocation[]>();
  for (const allocation of allocations) {
    const found = byNode.get(allocation.node);
    if (found) {
      found.push(allocation);
    } else {
      byNode.set(allocation.node, [allocation]);
    }
  }
  return nodes.map((node) => {
    const runs = byNode.get(node.id) ?? [];
    const cells = node.gpus.length > 0 ? gpuCells(node, runs, by) : hostCells(node, runs, by);
    return { node, state: nodeState(node, runs), reason: stateReason(node), cells, runs };
  });
}

function gpuCells(node: Node, runs: readonly Allocation[], by: ColourBy): Cell[] {
  const held = new Map<number, [Allocation, HeldGpu][]>();
  for (const run of runs) {
    for (const gpu of run.gpus) {
      held.set(gpu.index, [...(held.get(gpu.index) ?? []), [run, gpu]]);
    }
  }
  return node.gpus.map((card) => {
    const holders = held.get(card.index) ?? [];
    const heldPart = Math.min(1, holders.reduce((sum, [, gpu]) => sum + gpu.milli, 0) / 1000);
    const measured = holders.map(([, gpu]) => gpu);
    const use = newest(measured.map((gpu) => gpu.utilisation_percent));
    const celsius = newest(measured.map((gpu) => gpu.temperature_celsius));
    const heat = celsius === null ? null : (celsius - COLD_CELSIUS) / (HOT_CELSIUS - COLD_CELSIUS);
    const words = [
      `GPU ${card.index} ${card.model}`,
      ...holders.map(
        ([run, gpu]) => `${run.name} (${run.queue})${gpu.milli < 1000 ? `: ${gpu.milli / 1000}` : ""}`,
      ),
      ...(holders.length === 0 ? ["free"] : []),
      ...(use === null ? [] : [`${Math.round(use)}% busy`]),
      ...(celsius === null ? [] : [`${Math.round(celsius)} °C`]),
    ];
    const level = by === "temperature" ? heat : use === null ? null : use / 100;
    return {
      key: `gpu${card.index}`,
      title: words.join("\n"),
      heldPart,
      level: clamp(level),
      group: groupOf(
        holders.map(([run]) => run),
        by,
      ),
    };
  });
}

function hostCells(node: Node, runs: readonly Allocation[], by: ColourBy): Cell[] {
  const group = groupOf(runs, by);
  const names = runs.map((run) => run.name);
  const cell = (key: string, name: string, used: number, total: number): Cell => {
    const heldPart = total > 0 ? Math.min(1, used / total) : 0;
    const title = [`${name}: ${Math.round(heldPart * 100)}% held`, ...names].join("\n");
    return { key, title, heldPart, level: null, group };
  };
  return [
    cell("cpu", "CPU", node.used.cpu_milli ?? 0, node.cpu_milli),
    cell("memory", "memory", node.used.memory_bytes ?? 0, node.memory_bytes),
  ];
}

function groupOf(runs: readonly Allocation[], by: ColourBy): string {
  const names = new Set(runs.map((run) => (by === "user" ? run.user : run.queue)));
  return names.size === 1 ? ([...names][0] ?? "") : "";
}

function newest(values: readonly (number | null)[]): number | null {
  return values.find((value) => value !== null) ?? null;
}

function clamp(level: number | null): number | null {
  return level === null ? null : Math.max(0, Math.min(1, level));
}

const searchTexts = new WeakMap<Tile, string>(); // a filter looks at all tiles for each letter

function searchText(tile: Tile): string {
  const kept = searchTexts.get(tile);
  if (kept !== undefined) {
    return kept;
  }
  const { node } = tile;
  const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
  const runs = tile.runs.flatMap((run) => [run.name, run.queue]);
  const models = node.gpus.map((card) => card.model);
  const text = [node.id, node.pool, tile.state, ...labels, ...models, ...runs].join("\n").toLowerCase();
  searchTexts.set(tile, text);
  return text;
}

/** Whether a tile fits the words of the filter: each is a part of the node's name, pool, state, label or runs. */
export function isShown(tile: Tile, words: readonly string[]): boolean {
  return words.every((word) => searchText(tile).includes(word));
}

export interface Row {
  key: string;
  pool: string; // of a heading; "" for a row of tiles
  tiles: readonly Tile[];
  lines: number; // of cells in its tallest tile
}

export const CELLS_PER_LINE = 8;

/** Returns rows of `perRow` tiles, a heading before each pool. */
export function toRows(tiles: readonly Tile[], perRow: number): Row[] {
  const pools = [...new Set(tiles.map((tile) => tile.node.pool))].sort();
  return pools.flatMap((pool) => {
    const own = tiles.filter((tile) => tile.node.pool === pool);
    const rows: Row[] = [{ key: `pool ${pool}`, pool, tiles: own, lines: 0 }];
    for (let at = 0; at < own.length; at += perRow) {
      const some = own.slice(at, at + perRow);
      const lines = Math.max(...some.map((tile) => Math.ceil(tile.cells.length / CELLS_PER_LINE)));
      rows.push({ key: some[0]?.node.id ?? String(at), pool: "", tiles: some, lines });
    }
    return rows;
  });
}
