import { useMemo } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { formatBytes } from "@/text/format";
import type { Column, Run } from "./columns";
import type { CompareParts } from "./compare_parts";
import { TableTab } from "./table_tab";

const SECTIONS = ["Hardware", "Variables", "Environment"];

/** What the runs ran on and with: machines, variables, interpreter and packages, differences first. */
export function EnvironmentTab(parts: CompareParts) {
  const { data: nodes } = usePolled(
    "nodes",
    () => data(api.GET("/api/v1/nodes")),
    () => null,
  );
  const more = useMemo(() => nodeColumns(parts.runs, nodes?.nodes ?? []), [parts.runs, nodes]);
  return <TableTab {...parts} sections={SECTIONS} more={more} />;
}

/** Returns what the nodes of the runs have, as far as these nodes are still in the cluster. */
function nodeColumns(runs: readonly Run[], nodes: readonly Schemas["NodeOut"][]): Column[] {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const read = (name: string, text: (node: Schemas["NodeOut"]) => string): Column => ({
    section: "Hardware",
    name,
    key: `hardware.${name}`,
    values: runs.map((run) => {
      const ids = (run.attempt ?? run.attempts?.at(-1))?.nodes ?? [];
      const found = [...new Set(ids)].flatMap((id) => byId.get(id) ?? []).map(text);
      return [...new Set(found.filter((each) => each !== ""))].sort().join(", ") || null;
    }),
  });
  return [
    read("GPU models of the nodes", (node) => [...new Set(node.gpus.map((gpu) => gpu.model))].join(", ")),
    read("CPUs of the nodes", (node) => String(node.cpu_milli / 1000)),
    read("memory of the nodes", (node) => formatBytes(node.memory_bytes)),
  ].filter((column) => column.values.some((value) => value !== null));
}
