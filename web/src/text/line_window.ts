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

/** Returns the lines that begin in a window, of the bytes of `windowRange`. Each line is in one window. */
export function cutWindow(bytes: Uint8Array<ArrayBuffer>, index: number): Uint8Array<ArrayBuffer> {
  const isFirst = index === 0;
  const limit = WINDOW_BYTES + (isFirst ? 0 : 1); // where the next window begins
  // the line that crosses into the window belongs to the one before, as far as that one reads
  const crossing = isFirst ? -1 : bytes.indexOf(NEWLINE);
  const begin = isFirst ? 0 : crossing >= 0 ? crossing + 1 : 1;
  if (begin > limit) {
    return bytes.subarray(0, 0);
  }
  const stop = bytes.indexOf(NEWLINE, limit - 1);
  return bytes.subarray(begin, stop >= 0 ? stop + 1 : bytes.length);
}

export function windowCount(sizeBytes: number): number {
  return Math.max(1, Math.ceil(sizeBytes / WINDOW_BYTES));
}
