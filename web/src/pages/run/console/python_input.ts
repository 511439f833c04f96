/** How the text of a Python prompt is read, without a parser of Python. */

const OPENING = "([{";
const CLOSING = ")]}";
const CONTINUES = /^(?:elif|else|except|finally)\b|^[)\]}]/;

/** Returns whether Enter begins another line: a bracket or a string with three quotes is open, the line ends with
 *  `:` or `\`, or a block has no empty line at its end yet. */
export function isIncomplete(source: string): boolean {
  const { depth, openString } = scan(source);
  if (depth > 0 || openString) {
    return true;
  }
  const lines = source.split("\n");
  const last = lines.at(-1) ?? "";
  return (
    /[:\\]\s*$/.test(last) || /^@/.test(last) || (lines.length > 1 && isBlock(lines) && last.trim() !== "")
  );
}

/** Returns how the text is evaluated: `single` shows the value of an expression, and takes one statement only. */
export function modeOf(source: string): "single" | "script" {
  const lines = source.trimEnd().split("\n");
  const { starts } = scan(source.trimEnd());
  const first = lines.findIndex((line) => !line.startsWith("@"));
  return lines.some((line, at) => at > first && starts.has(at) && /^\S/.test(line) && !CONTINUES.test(line))
    ? "script"
    : "single";
}

/** Returns the beginning of a name in front of the caret, such as `model.la`; "" without one. */
export function nameBefore(text: string): string {
  return /[\p{L}\p{N}_.]+$/u.exec(text)?.[0] ?? "";
}

function isBlock(lines: readonly string[]): boolean {
  return lines.some((line) => /:\s*(?:#.*)?$/.test(line));
}

/** starts: the lines that begin outside of brackets and strings. */
function scan(source: string): { depth: number; openString: boolean; starts: ReadonlySet<number> } {
  let depth = 0;
  let quote = "";
  let line = 0;
  const starts = new Set([0]);
  for (let at = 0; at < source.length; at++) {
    const char = source.charAt(at);
    if (char === "\n") {
      line++;
      if (quote.length === 1) {
        quote = ""; // an error, which Python reports
      }
      if (depth === 0 && quote === "") {
        starts.add(line);
      }
    } else if (quote !== "") {
      if (char === "\\") {
        at++;
      } else if (source.startsWith(quote, at)) {
        at += quote.length - 1;
        quote = "";
      }
    } else if (char === '"' || char === "'") {
      quote = source.startsWith(char.repeat(3), at) ? char.repeat(3) : char;
      at += quote.length - 1;
    } else if (char === "#") {
      while (at + 1 < source.length && source.charAt(at + 1) !== "\n") {
        at++;
      }
    } else if (OPENING.includes(char)) {
      depth++;
    } else if (CLOSING.includes(char)) {
      depth--;
    }
  }
  return { depth, openString: quote.length === 3, starts };
}
