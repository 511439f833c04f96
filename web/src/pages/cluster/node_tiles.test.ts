import { expect, test } from "vitest";
import { isShown, makeTiles, nodeState, toRows, type Allocation, type Node } from "./node_tiles";

const node = (id: string, rest: Partial<Node> = {}): Node => ({
  id,
  engine: "local",
  cpu_milli: 4000,
  memory_bytes: 100,
  gpus: [0, 1].map((index) => ({ index, model: "A100", memory_bytes: 0 })),
  pool: "train",
  ready: true,
  labels: { rack: "x" },
  cordoned: false,
  cordon_reason: "",
  trouble: "",
  extras: {},
  used: { cpu_milli: 1000, memory_bytes: 50 },
  reserved: [],
  server: "",
  away_since: null,
  not_ready: "",
  ...rest,
});
const gpu = (index: number, milli: number, use: number | null, celsius: number | null) => ({
  index,
  milli,
  utilisation_percent: use,
  memory_bytes: null,
  temperature_celsius: celsius,
});
const held = (name: string, rest: Partial<Allocation> = {}): Allocation => ({
  run: name,
  name,
  user: "ann",
  queue: "vision",
  node: "a",
  ranks: [0],
  cpu_milli: 1000,
  memory_bytes: 50,
  extras: {},
  gpus: [],
  cpu_percent: null,
  used_memory_bytes: null,
  placed_at: "2026-11-28T09:00:00Z",
  started_at: null,
  preemptible: true,
  stopping: false,
  ...rest,
});

test("a cell says what holds its GPU, and how busy and warm it is", () => {
  const runs = [
    held("r1", { gpus: [gpu(0, 500, 80, 60)] }),
    held("r2", { gpus: [gpu(0, 500, 80, 60)], user: "bob" }),
  ];
  const [tile] = makeTiles([node("a")], runs, "use");
  expect(tile?.cells.map((cell) => [cell.heldPart, cell.level])).toEqual([
    [1, 0.8],
    [0, null],
  ]);
  expect(tile?.cells[0]?.title).toBe("GPU 0 A100\nr1 (vision): 0.5\nr2 (vision): 0.5\n80% busy\n60 °C");
  expect(tile?.cells[1]?.title).toContain("free");
  expect(makeTiles([node("a")], runs, "temperature")[0]?.cells[0]?.level).toBe(0.5);
  expect(makeTiles([node("a")], runs, "queue")[0]?.cells[0]?.group).toBe("vision");
  expect(makeTiles([node("a")], runs, "user")[0]?.cells[0]?.group).toBe(""); // of two users
});

test("a node without GPUs shows its CPUs and memory", () => {
  const [tile] = makeTiles([node("a", { gpus: [] })], [], "use");
  expect(tile?.cells.map((cell) => cell.heldPart)).toEqual([0.25, 0.5]);
});

test("the state of a node is one word", () => {
  const leaving = held("r", { stopping: true });
  expect(nodeState(node("a"), [])).toBe("open");
  expect(nodeState(node("a", { cordoned: true }), [held("r")])).toBe("cordoned");
  expect(nodeState(node("a", { cordoned: true }), [leaving])).toBe("draining");
  expect(nodeState(node("a", { ready: false, cordoned: true }), [])).toBe("lost");
  expect(nodeState(node("a", { trouble: "the disk is full" }), [])).toBe("out of service");
});

test("a filter finds nodes by name, pool, state, label, model and run", () => {
  const [tile] = makeTiles([node("a")], [held("ann/mnist/1")], "use");
  for (const words of [["train"], ["rack=x"], ["a100", "open"], ["mnist/1"], []]) {
    expect(tile && isShown(tile, words)).toBe(true);
  }
  expect(tile && isShown(tile, ["train", "lost"])).toBe(false);
});

test("rows hold as many tiles as fit, below the heading of their pool", () => {
  const nodes = ["a", "b", "c"].map((id) => node(id));
  const tiles = makeTiles([...nodes, node("d", { pool: "small" })], [], "use");
  const rows = toRows(tiles, 2);
  expect(rows.map((row) => row.pool || row.tiles.map((tile) => tile.node.id).join())).toEqual([
    "small",
    "d",
    "train",
    "a,b",
    "c",
  ]);
});
