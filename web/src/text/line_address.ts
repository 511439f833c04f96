/** The address of a line of a file: `?line=12`, counted from 1. */

/** Returns how many lines a text has. A line feed at its end begins none. */
export function countLines(text: string): number {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0 && at < text.length - 1; at = text.indexOf("\n", at + 1)) {
    count += 1;
  }
  return count;
}

/** Returns the line that an address names; null: none. */
export function lineOf(search: URLSearchParams): number | null {
  const text = search.get("line") ?? "";
  return /^[1-9]\d{0,8}$/.test(text) ? Number(text) : null;
}

/** Returns the address with this line. */
export function withLine(search: URLSearchParams, line: number): string {
  const next = new URLSearchParams(search);
  next.set("line", String(line));
  return next.toString();
}
