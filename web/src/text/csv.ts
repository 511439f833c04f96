/** Reads delimited text (RFC 4180, and what is found instead of it). */

export interface Csv {
  header: string[];
  rows: string[][];
  isTruncated: boolean;
}

/** Returns the fields; the first row is the header. Reads `maxRows` rows and `maxColumns` columns at most. */
export function parseCsv(text: string, maxRows = 1000, maxColumns = 200): Csv {
  const source = text.startsWith("\ufeff") ? text.slice(1) : text;
  const delimiter = findDelimiter(source);
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  const add = (field: string) => {
    if (row.length < maxColumns) {
      row.push(field);
    }
  };
  while (at < source.length && rows.length <= maxRows) {
    let field: string;
    if (source[at] === '"') {
      [field, at] = readQuoted(source, at + 1);
    } else {
      const end = findEnd(source, at, delimiter);
      field = source.slice(at, end);
      at = end;
    }
    add(field);
    const stop = source[at];
    if (stop === delimiter) {
      at += 1;
      if (at < source.length) {
        continue;
      }
      add("");
    }
    at += source.startsWith("\r\n", at) ? 2 : 1;
    rows.push(row);
    row = [];
  }
  const [header = [], ...rest] = rows;
  return { header, rows: rest, isTruncated: at < source.length };
}

function findDelimiter(source: string): string {
  const line = source.slice(0, 10_000).split(/\r?\n/, 1)[0] ?? "";
  const counts = [",", "\t", ";"].map((each) => [each, line.split(each).length] as const);
  return counts.reduce((best, each) => (each[1] > best[1] ? each : best))[0];
}

/** Returns the field and the offset after it, with what stands between the quote and the delimiter left out. */
function readQuoted(source: string, begin: number): [string, number] {
  let field = "";
  let at = begin;
  for (;;) {
    const quote = source.indexOf('"', at);
    if (quote < 0) {
      return [field + source.slice(at), source.length];
    }
    field += source.slice(at, quote);
    if (source[quote + 1] !== '"') {
      return [field, quote + 1];
    }
    field += '"';
    at = quote + 2;
  }
}

function findEnd(source: string, begin: number, delimiter: string): number {
  for (let at = begin; at < source.length; at += 1) {
    const character = source[at];
    if (character === delimiter || character === "\n" || (character === "\r" && source[at + 1] === "\n")) {
      return at;
    }
  }
  return source.length;
}
