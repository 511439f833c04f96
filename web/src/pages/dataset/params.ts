/** Returns the names of the params that not all rows have with the same value, in the order of their rows. */
export function differingParams(rows: readonly Record<string, unknown>[]): string[] {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return names.filter((name) => new Set(rows.map((row) => JSON.stringify(row[name]))).size > 1);
}
