/** A long text in windows of whole lines. */

export const WINDOW_BYTES = 64 << 10;
const MAX_LINE_BYTES = 64 << 10; // a longer line is cut

/** The bytes to read for a window: those of a line may begin before, and end behind it. */
export function windowRange(index: number, sizeBytes: number): { begin: number; end: number } {
  const begin = index * WINDOW_BYTES;
  return {
    begin: Math.max(0, begin - 1), // with the end of the line before, to see where lines begin
    end: Math.min(sizeBytes, begin + WINDOW_BYTES + MAX_LINE_BYTES),
  };
}

const NEWLINE = 10;

/** Returns where the lines that begin in a window begin, in the bytes of `windowRange`. */
export function windowStart(bytes: Uint8Array<ArrayBuffer>, index: number): number {
  // the line that crosses into the window belongs to the one before, as far as that one reads
  const crossing = index === 0 ? -1 : bytes.indexOf(NEWLINE);
  return index === 0 ? 0 : crossing >= 0 ? crossing + 1 : 1;
}

/** Returns the lines that begin in a window, of the bytes of `windowRange`. Each line is in one window. */
export function cutWindow(bytes: Uint8Array<ArrayBuffer>, index: number): Uint8Array<ArrayBuffer> {
  const limit = WINDOW_BYTES + (index === 0 ? 0 : 1); // where the next window begins
  const begin = windowStart(bytes, index);
  if (begin > limit) {
    return bytes.subarray(0, 0);
  }
  const stop = bytes.indexOf(NEWLINE, limit - 1);
  return bytes.subarray(begin, stop >= 0 ? stop + 1 : bytes.length);
}

export function windowCount(sizeBytes: number): number {
  return Math.max(1, Math.ceil(sizeBytes / WINDOW_BYTES));
}

/** Reads the bytes from `begin` to before `end`. */
export type ReadPart = (begin: number, end: number) => Promise<Uint8Array<ArrayBuffer>>;

const COUNTED_BYTES = 4 << 20; // that are read at a time

/** Counts the lines of a file up to an offset. What it has read once is not read again. */
export class LineCounter {
  private readonly marks = new Map<number, number>([[0, 0]]); // line feeds before an offset

  constructor(private readonly read: ReadPart) {}

  /** Returns how many bytes `lineAt` would read. */
  unreadBytes(offset: number): number {
    return offset - this.markBefore(offset);
  }

  /** Returns the number of the line that the byte at `offset` belongs to, counted from 1. */
  async lineAt(offset: number, signal: AbortSignal): Promise<number> {
    let at = this.markBefore(offset);
    let breaks = this.marks.get(at) ?? 0;
    while (at < offset) {
      signal.throwIfAborted();
      const end = Math.min(offset, at + COUNTED_BYTES);
      const bytes = await this.read(at, end);
      breaks += countBreaks(bytes);
      at = end;
      this.marks.set(at, breaks);
    }
    return breaks + 1;
  }

  /** Returns where a line begins; null if none of the first `limit` bytes is before it. */
  async offsetOf(line: number, limit: number, signal: AbortSignal): Promise<number | null> {
    let breaks = 0;
    for (let at = 0; at < limit; at += COUNTED_BYTES) {
      if (breaks === line - 1 && at === 0) {
        return 0;
      }
      signal.throwIfAborted();
      const bytes = await this.read(at, Math.min(limit, at + COUNTED_BYTES));
      for (let found = bytes.indexOf(NEWLINE); found >= 0; found = bytes.indexOf(NEWLINE, found + 1)) {
        breaks += 1;
        if (breaks === line - 1) {
          return at + found + 1;
        }
      }
    }
    return null;
  }

  private markBefore(offset: number): number {
    let nearest = 0;
    for (const at of this.marks.keys()) {
      if (at <= offset && at > nearest) {
        nearest = at;
      }
    }
    return nearest;
  }
}

function countBreaks(bytes: Uint8Array): number {
  let count = 0;
  for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) {
    count += 1;
  }
  return count;
}
