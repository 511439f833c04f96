/** Amounts of resources, written as `hop queue` writes them. */
import { formatBytes, formatCount } from "@/text/format";

export type Amounts = Readonly<Record<string, number>>;

const ORDER: Readonly<Record<string, number>> = { gpu: 0, cpu: 2, memory: 3 };

/** Returns `4 GPUs`, `0.5 A100 GPUs`, `2 CPUs`, `64 GiB` or `2 fpga`. */
export function formatAmount(resource: string, amount: number): string {
  if (resource === "memory") {
    return formatBytes(amount);
  }
  const [family = "", model = ""] = resource.split(":");
  if (family !== "gpu" && resource !== "cpu") {
    return `${amount} ${resource}`;
  }
  const count = amount / 1000;
  const noun = `${model === "" ? "" : `${model} `}${family === "gpu" ? "GPU" : "CPU"}`;
  return formatCount(Number(count.toPrecision(4)), noun);
}

/** Returns all amounts, GPUs first; `–` for none. */
export function formatAmounts(amounts: Amounts): string {
  const names = Object.keys(amounts).filter((name) => (amounts[name] ?? 0) > 0);
  const place = (name: string) => ORDER[name] ?? 1;
  names.sort((one, two) => place(one) - place(two) || one.localeCompare(two));
  return names.map((name) => formatAmount(name, amounts[name] ?? 0)).join(", ") || "–";
}

/** The resource that the bars of queues show: GPUs where there are any. */
export function shownResource(cluster: Amounts): string {
  return (cluster["gpu"] ?? 0) > 0 ? "gpu" : "cpu";
}
