/** Places in the code of a run that its output names: `File "…/0/work/train.py", line 12`, or `train.py:12`. */

export interface CodePlace {
  path: string; // in the snapshot of the code
  line: number; // from 1
}

/** A place, and where its name is in the text. */
export interface PlaceInText extends CodePlace {
  begin: number;
  end: number;
}

// Python and its syntax errors; then warnings, and tracebacks that are drawn with frames
const PLACES = [
  /File "([^"\n]{1,1000})", line (\d{1,7})/g,
  /\(([^\s()"',]{1,1000}), line (\d{1,7})\)/g,
  /(?<![^\s"'(│|])([^\s"'():,│|]{1,1000}\.\w{1,8}):(\d{1,7})\b/g,
];
const WORK = "work"; // the name of the working folder of each replica
const TRACEBACK = "Traceback (most recent call last)";
const UNREADABLE = /^(?:Syntax|Indentation|Tab)Error: /m;
const MAX_LENGTH = 4000; // characters of a line

/** Whether a text may name a place, before the files of the code are known. */
export function mayNamePlace(text: string): boolean {
  return text.length <= MAX_LENGTH && /line \d|\.\w{1,8}:\d/.test(text);
}

/** Returns the places in a text of which the files are in the code, in their order. */
export function findPlaces(text: string, files: ReadonlySet<string>): PlaceInText[] {
  if (!mayNamePlace(text)) {
    return [];
  }
  const found: PlaceInText[] = [];
  for (const pattern of PLACES) {
    for (const match of text.matchAll(pattern)) {
      const path = fileOfCode(match[1] ?? "", files);
      const line = Number(match[2]);
      const place = { path: path ?? "", line, begin: match.index, end: match.index + match[0].length };
      if (path !== null && line > 0 && !found.some((other) => overlaps(other, place))) {
        found.push(place);
      }
    }
  }
  return found.sort((a, b) => a.begin - b.begin);
}

const overlaps = (a: PlaceInText, b: PlaceInText) => a.begin < b.end && b.begin < a.end;

/** Returns the path in the code of a path in the working folder of a replica; null: it is elsewhere. */
function fileOfCode(path: string, files: ReadonlySet<string>): string | null {
  if (!path.startsWith("/")) {
    const relative = path.replace(/^(\.\/)+/, "");
    return files.has(relative) ? relative : null;
  }
  const folders = path.split("/");
  for (let at = folders.indexOf(WORK); at >= 0; at = folders.indexOf(WORK, at + 1)) {
    const inside = folders.slice(at + 1).join("/");
    if (files.has(inside)) {
      return inside;
    }
  }
  return null;
}

/** Whether an output has a traceback, or the error of a script that Python cannot read. */
export function hasTraceback(output: string): boolean {
  return output.includes(TRACEBACK) || UNREADABLE.test(output);
}

/** Returns the innermost place in the code of the last traceback of an output; null: none. */
export function raisingPlace(output: string, files: ReadonlySet<string>): CodePlace | null {
  if (!hasTraceback(output)) {
    return null;
  }
  let place: CodePlace | null = null;
  // a script that Python cannot read has no traceback, only the place
  const begin = output.lastIndexOf(TRACEBACK);
  const lines = output.slice(Math.max(0, begin)).split("\n");
  for (const line of begin < 0 ? lines : lines.slice(1)) {
    if (begin >= 0 && /^[^\s│|+╭]/.test(line)) {
      break; // the exception
    }
    place = findPlaces(line, files).at(-1) ?? place;
  }
  return place;
}

/** Returns the address of a line in the code of a run. */
export function placeAddress(run: string, { path, line }: CodePlace): string {
  const search = new URLSearchParams({ tab: "files", files: "code", file: path, line: String(line) });
  return `/runs/${encodeURIComponent(run)}?${search}`;
}
