/** Names that users chose, as they may be shown. */

/** Direction marks reorder what is read: `\u202egnp.exe` reads as `exe.png`. */
export const DIRECTION_MARKS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const UNSEEN = /[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\u2060\ufeff]/g;

/** Returns a name in which each character that hides or reorders others is a sign, as in the log. */
export function shownName(name: string): string {
  return replaceMarks(name, "\ufffd");
}

/** Returns a name for a file to keep. */
export function savedName(name: string): string {
  return replaceMarks(name, "_");
}

function replaceMarks(name: string, sign: string): string {
  return name.replace(DIRECTION_MARKS, sign).replace(UNSEEN, sign);
}
