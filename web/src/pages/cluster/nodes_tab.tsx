import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { useVirtualizer } from "@tanstack/react-virtual";
import { api, data } from "@/api/client";
import { curveColour } from "@/charts/palette";
import { shownTheme } from "@/charts/shown_theme";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatCount } from "@/text/format";
import styles from "./cluster.module.css";
import { nodeHref, readAllocations } from "./cluster_data";
import { COLOUR_BY, isShown, makeTiles, toRows, type Cell, type ColourBy, type Tile } from "./node_tiles";
import { useLive } from "./use_live";

const MEASURE_MS = 10_000; // measured values have no events
const TILE_PX = 168;
const GAP_PX = 8;
const HEADING_PX = 34;
const TILE_HEAD_PX = 44;
const LINE_PX = 18;
const NARROW_PX = 720;
const OVERSCAN = 3; // a row has tens of GPUs
const NO_GROUPS: ReadonlyMap<string, number> = new Map();

async function readNodes() {
  const [{ nodes }, allocations] = await Promise.all([data(api.GET("/api/v1/nodes")), readAllocations()]);
  return { nodes, allocations };
}

/** The heat map: a tile for each node, a cell for each GPU. */
export function NodesTab() {
  const [address, setAddress] = useSearchParams();
  const by = COLOUR_BY.find((each) => each === address.get("colour")) ?? "use";
  const filter = address.get("filter") ?? "";
  const { data: found, error } = useLive("nodes", readNodes, ["node", "run", "reservation"], MEASURE_MS);
  const tiles = useMemo(() => (found ? makeTiles(found.nodes, found.allocations, by) : []), [found, by]);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = useMemo(() => tiles.filter((tile) => isShown(tile, words)), [tiles, filter]);
  const set = (name: string, value: string, fallback: string) =>
    setAddress(
      (old) => {
        if (value === fallback) {
          old.delete(name);
        } else {
          old.set(name, value);
        }
        return old;
      },
      { replace: true },
    );
  if (!found) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (tiles.length === 0) {
    return (
      <Empty title="No nodes yet" command="hop up">
        <p>A node appears here once its server has started.</p>
      </Empty>
    );
  }
  return (
    <>
      <StaleNotice error={error} />
      <div class={pageStyles["bar"]}>
        <input
          class={fieldStyles["input"]}
          type="search"
          aria-label="filter of nodes"
          placeholder="Name, state, run…"
          value={filter}
          onInput={(event) => set("filter", event.currentTarget.value, "")}
        />
        <label>
          Colour
          <select
            class={fieldStyles["input"]}
            value={by}
            onChange={(event) => set("colour", event.currentTarget.value, "use")}
          >
            <option value="use">by use</option>
            <option value="temperature">by temperature</option>
            <option value="user">by user</option>
            <option value="queue">by queue</option>
          </select>
        </label>
        <Summary tiles={shown} />
      </div>
      <Legend tiles={shown} by={by} />
      {shown.length === 0 ? <Empty title="No node fits the filter" /> : <HeatMap tiles={shown} by={by} />}
    </>
  );
}

function Summary({ tiles }: { tiles: readonly Tile[] }) {
  const gpus = tiles.reduce((sum, tile) => sum + tile.node.gpus.length, 0);
  const held = tiles.reduce(
    (sum, tile) => sum + (tile.node.used.gpu_milli ?? []).reduce((all, milli) => all + milli, 0),
    0,
  );
  const counts = new Map<string, number>();
  tiles.forEach((tile) => counts.set(tile.state, (counts.get(tile.state) ?? 0) + 1));
  const words = [
    formatCount(tiles.length, "node"),
    ...(gpus > 0 ? [`${Number((held / 1000).toFixed(2))} of ${gpus} GPUs held`] : []),
    ...[...counts].filter(([state]) => state !== "open").map(([state, count]) => `${count} ${state}`),
  ];
  return (
    <span class={pageStyles["quiet"]} role="status">
      {words.join(" · ")}
    </span>
  );
}

/** The groups by which cells are coloured, in the order of their colours. */
function groupsOf(tiles: readonly Tile[]): string[] {
  const names = tiles.flatMap((tile) => tile.cells.map((cell) => cell.group));
  return [...new Set(names.filter((name) => name !== ""))].sort();
}

function Legend({ tiles, by }: { tiles: readonly Tile[]; by: ColourBy }) {
  const theme = shownTheme.value;
  if (by === "use" || by === "temperature") {
    return (
      <p class={styles["legend"]}>
        <span class={styles["cell"]} /> free
        <span class={`${styles["cell"]} ${styles["held"]}`} /> held, not measured
        <span class={styles["scale"]} aria-hidden="true" />
        {by === "use" ? "0 to 100% busy" : "30 to 90 °C"}
      </p>
    );
  }
  return (
    <p class={styles["legend"]}>
      {groupsOf(tiles).map((name, number) => (
        <span key={name} class={styles["key"]}>
          <span class={styles["cell"]} style={{ background: curveColour(number, theme) }} /> {name}
        </span>
      ))}
    </p>
  );
}

/** Only the rows in sight are in the document: thousands of GPUs stay fluid. */
function HeatMap({ tiles, by }: { tiles: readonly Tile[]; by: ColourBy }) {
  const scroll = useRef<HTMLDivElement>(null);
  const [perRow, setPerRow] = useState(1);
  useEffect(() => {
    const element = scroll.current;
    if (!element) {
      return;
    }
    const observer = new ResizeObserver(() =>
      setPerRow(Math.max(1, Math.floor((element.clientWidth + GAP_PX) / (TILE_PX + GAP_PX)))),
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const rows = useMemo(() => toRows(tiles, perRow), [tiles, perRow]);
  const groups = useMemo(
    () =>
      by === "user" || by === "queue"
        ? new Map(groupsOf(tiles).map((name, number) => [name, number] as const))
        : NO_GROUPS,
    [tiles, by],
  );
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: (index) => {
      const row = rows[index];
      return row === undefined || row.pool !== "" ? HEADING_PX : TILE_HEAD_PX + row.lines * LINE_PX + GAP_PX;
    },
    getItemKey: (index) => rows[index]?.key ?? index,
    overscan: OVERSCAN,
  });
  useEffect(() => virtual.measure(), [rows]);
  const isNarrow = window.innerWidth < NARROW_PX;
  return (
    <div ref={scroll} class={styles["map"]} tabIndex={0} role="group" aria-label="nodes">
      <div class={styles["rows"]} style={{ height: `${virtual.getTotalSize()}px` }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) {
            return null;
          }
          const place = { transform: `translateY(${item.start}px)` };
          if (row.pool !== "") {
            return (
              <h2 key={item.key} class={styles["pool"]} style={place}>
                {row.pool} <small>{row.tiles.length}</small>
              </h2>
            );
          }
          return (
            <div key={item.key} class={styles["row"]} style={place}>
              {row.tiles.map((tile) => (
                <NodeTile
                  key={tile.node.id}
                  tile={tile}
                  by={by}
                  groups={groups}
                  isWide={isNarrow && perRow === 1}
                />
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** Drawn again only for other values: a filter keeps most tiles. */
const NodeTile = memo(function NodeTile({
  tile,
  by,
  groups,
  isWide,
}: {
  tile: Tile;
  by: ColourBy;
  groups: ReadonlyMap<string, number>;
  isWide: boolean;
}) {
  const { node, state, reason, cells, runs } = tile;
  const held = (node.used.gpu_milli ?? []).reduce((sum, milli) => sum + milli, 0) / 1000;
  const facts = node.gpus.length > 0 ? `${held} of ${node.gpus.length} GPUs held` : "no GPU";
  const count = formatCount(runs.length, "run");
  return (
    <Link
      href={nodeHref(node.id)}
      class={`${styles["tile"]} ${state === "open" ? "" : styles["closed"]} ${isWide ? styles["wide"] : ""}`}
      aria-label={`${node.id} ${state}${reason === "" ? "" : `, ${reason}`}, ${facts}, ${count}`}
      title={reason}
    >
      <span class={styles["tileHead"]}>
        <b>{node.id}</b>
        <span class={styles[`state-${state.replaceAll(" ", "-")}`]}>{state === "open" ? "" : state}</span>
      </span>
      <span class={styles["cells"]} aria-hidden="true">
        {cells.map((cell) => (
          <CellBox key={cell.key} cell={cell} by={by} groups={groups} isBar={node.gpus.length === 0} />
        ))}
      </span>
    </Link>
  );
});

function CellBox({
  cell,
  by,
  groups,
  isBar,
}: {
  cell: Cell;
  by: ColourBy;
  groups: ReadonlyMap<string, number>;
  isBar: boolean;
}) {
  const isGrouped = by === "user" || by === "queue";
  const isFree = cell.heldPart === 0;
  const number = groups.get(cell.group);
  const colour = isFree
    ? undefined
    : isGrouped
      ? number === undefined
        ? "var(--text-3)"
        : curveColour(number, shownTheme.value)
      : cell.level === null
        ? "var(--held)"
        : `color-mix(in oklab, var(--heat-1) ${Math.round(cell.level * 100)}%, var(--heat-0))`;
  const width = `${Math.round(cell.heldPart * 100)}%`;
  return (
    <span class={isBar ? styles["meter"] : styles["cell"]} title={cell.title}>
      {colour !== undefined && (
        <span
          class={styles["fill"]}
          style={isBar ? { background: colour, width } : { background: colour, height: width }}
        />
      )}
    </span>
  );
}
