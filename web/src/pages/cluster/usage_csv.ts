/** The rows of the usage report, and their CSV: the columns of `hop usage --csv`. */
import type { Schemas } from "@/api/client";

export type Usage = Schemas["UsageOut"];
export const GROUPS = ["user", "queue", "project"] as const;
export type Group = (typeof GROUPS)[number];
const AMOUNTS = ["attempts", "held_s", "gpu_s", "cpu_s", "memory_byte_s"] as const;

/** Returns the report as CSV, amounts in seconds. A text that a spreadsheet takes for a formula gets a `'`. */
export function usageCsv(rows: readonly Usage[], groups: readonly Group[]): string {
  const columns = ["since", "until", ...groups, ...AMOUNTS] as const;
  const lines = rows.map((row) => columns.map((column) => field(row[column])).join(","));
  return [columns.join(","), ...lines].map((line) => `${line}\r\n`).join("");
}

function field(value: string | number | null): string {
  if (typeof value === "number") {
    return String(value);
  }
  const text = value ?? "";
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
