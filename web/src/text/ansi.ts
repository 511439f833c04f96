/** A line of a log as a terminal shows it: colours, carriage returns, and nothing else of the escape sequences.
 *  Sequences that move to another line, set titles or make links are dropped; their text stays. */
import { DIRECTION_MARKS } from "./shown_name";

/** Colours are indexes of the palette of 256, or `#rrggbb`; undefined: the default. */
export interface TextStyle {
  color?: number | string;
  background?: number | string;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  inverse?: boolean;
}

export interface Span {
  text: string;
  style: TextStyle;
}

/** Characters of a line that are interpreted; the rest is cut off. */
export const MAX_LINE = 16_384;
const PLAIN: TextStyle = Object.freeze({});
// CSI; strings such as OSC up to BEL or ST, also without an end; other escapes of two or three characters
const ESCAPE =
  /(?:\x1b\[|\x9b)([0-?]*)[ -/]*(?:([@-~])|$)|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\x9c]|\x1b(?!\\))*(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*(?:[0-~])?/y;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/;

/** Returns the spans of a line (without its line feed). `hidden`: how many of its characters were cut off. */
export function parseLine(source: string): { spans: Span[]; hidden: number } {
  const { text, hidden } = limit(source);
  if (!CONTROL.test(text)) {
    return { spans: text === "" ? [] : [{ text: text.replace(DIRECTION_MARKS, "�"), style: PLAIN }], hidden };
  }
  return { spans: render(text), hidden };
}

/** Returns the text of a line without escape sequences, as it is searched and copied. */
export function plainText(source: string): string {
  return CONTROL.test(source)
    ? parseLine(source)
        .spans.map((span) => span.text)
        .join("")
    : source;
}

/** A long line of a progress bar ends with what is visible; of any other line the beginning is shown. */
function limit(source: string): { text: string; hidden: number } {
  if (source.length <= MAX_LINE) {
    return { text: source, hidden: 0 };
  }
  const tail = source.slice(-MAX_LINE);
  const turn = tail.search(/\r(?=[^\r])/);
  if (turn >= 0) {
    return { text: tail.slice(turn + 1), hidden: 0 };
  }
  return { text: source.slice(0, MAX_LINE), hidden: source.length - MAX_LINE };
}

function render(text: string): Span[] {
  const cells: string[] = [];
  const styles: TextStyle[] = [];
  let column = 0;
  let style = PLAIN;
  let at = 0;
  while (at < text.length) {
    const code = text.codePointAt(at) ?? 0;
    const character = String.fromCodePoint(code);
    if (code === 0x1b || (code >= 0x90 && code <= 0x9f)) {
      ESCAPE.lastIndex = at;
      const match = ESCAPE.exec(text);
      at += Math.max(1, match?.[0].length ?? 1);
      const [, parameters = "", final] = match ?? [];
      const count = Math.min(MAX_LINE, Number(parameters.split(";")[0]) || 0);
      if (final === "m") {
        style = applySgr(style, parameters);
      } else if (final === "K") {
        erase(cells, styles, column, count);
      } else if (final === "G" || final === "`") {
        column = Math.max(0, count - 1);
      } else if (final === "C") {
        column = Math.min(MAX_LINE, column + Math.max(1, count));
      } else if (final === "D") {
        column = Math.max(0, column - Math.max(1, count));
      }
      continue;
    }
    at += character.length;
    if (character === "\r") {
      column = 0;
    } else if (character === "\b") {
      column = Math.max(0, column - 1);
    } else if (code === 9 || (code >= 0x20 && (code < 0x7f || code > 0x9f))) {
      while (cells.length < column) {
        cells.push(" ");
        styles.push(PLAIN);
      }
      cells[column] = character.replace(DIRECTION_MARKS, "�");
      styles[column] = style;
      column += 1;
    }
  }
  return toSpans(cells, styles);
}

function erase(cells: string[], styles: TextStyle[], column: number, mode: number): void {
  if (mode === 0) {
    cells.length = styles.length = Math.min(cells.length, column);
  } else if (mode === 2) {
    cells.length = styles.length = 0;
  } else if (mode === 1) {
    for (let index = 0; index <= Math.min(column, cells.length - 1); index += 1) {
      cells[index] = " ";
      styles[index] = PLAIN;
    }
  }
}

function toSpans(cells: string[], styles: TextStyle[]): Span[] {
  const spans: Span[] = [];
  let last: TextStyle | null = null;
  cells.forEach((cell, index) => {
    const style = styles[index] ?? PLAIN;
    const span = spans.at(-1);
    if (span && style === last) {
      span.text += cell;
    } else {
      spans.push({ text: cell, style });
      last = style;
    }
  });
  return spans;
}

const FLAGS: Record<number, TextStyle> = {
  1: { bold: true },
  2: { dim: true },
  3: { italic: true },
  4: { underline: true },
  7: { inverse: true },
  22: { bold: false, dim: false },
  23: { italic: false },
  24: { underline: false },
  27: { inverse: false },
};

/** Returns the style after a sequence `ESC [ parameters m`. Unknown parameters have no effect. */
function applySgr(style: TextStyle, parameters: string): TextStyle {
  const codes = parameters.split(/[;:]/).map(Number);
  let next: TextStyle = { ...style };
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index] ?? 0;
    if (code === 0) {
      next = {};
    } else if (code in FLAGS) {
      Object.assign(next, FLAGS[code]);
    } else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
      next.color = code < 90 ? code - 30 : code - 82;
    } else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) {
      next.background = code < 100 ? code - 40 : code - 92;
    } else if (code === 39) {
      delete next.color;
    } else if (code === 49) {
      delete next.background;
    } else if (code === 38 || code === 48) {
      const isRgb = codes[index + 1] === 2;
      const color = isRgb ? toHex(codes.slice(index + 2, index + 5)) : codes[index + 2];
      index += isRgb ? 4 : 2;
      if (typeof color === "string" || (color !== undefined && color >= 0 && color < 256)) {
        next[code === 38 ? "color" : "background"] = color;
      }
    }
  }
  return next;
}

function toHex(parts: number[]): string | undefined {
  const isValid = parts.length === 3 && parts.every((part) => part >= 0 && part <= 255);
  return isValid ? `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}` : undefined;
}

/** Returns the CSS colour of a style's colour. The first 16 are variables of the theme. */
export function cssColor(color: number | string): string {
  if (typeof color === "string") {
    return color;
  }
  if (color < 16) {
    return `var(--ansi-${color})`;
  }
  if (color >= 232) {
    const level = 8 + (color - 232) * 10;
    return `rgb(${level} ${level} ${level})`;
  }
  const part = (value: number) => (value === 0 ? 0 : 55 + value * 40);
  const index = color - 16;
  return `rgb(${part(Math.floor(index / 36))} ${part(Math.floor(index / 6) % 6)} ${part(index % 6)})`;
}
