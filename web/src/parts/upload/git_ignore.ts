/** Git's ignore patterns: gitignore(5). */

export interface IgnoreMatch {
  excluded: boolean;
  /** The pattern has no wildcard: it names the path itself. */
  isLiteral: boolean;
  line: number;
}

interface Pattern extends IgnoreMatch {
  onlyFolders: boolean;
  matchesName: boolean;
  regex: RegExp;
}

const SPECIAL = /[*?[\\]/;
const CLASSES: Record<string, string> = {
  alnum: "A-Za-z0-9",
  alpha: "A-Za-z",
  blank: " \\t",
  digit: "0-9",
  lower: "a-z",
  punct: "!-\\/:-@\\[-`{-~",
  space: " \\t\\n\\r",
  upper: "A-Z",
  xdigit: "0-9A-Fa-f",
};

/** The patterns of one ignore file. Paths are relative to its folder. */
export class GitIgnore {
  private readonly patterns: Pattern[] = [];

  constructor(text: string) {
    text
      .replace(/^\uFEFF/, "")
      .split("\n")
      .forEach((raw, index) => {
        const line = withoutTrailingSpaces(raw.replace(/\r$/, ""));
        if (line !== "" && !line.startsWith("#")) {
          this.add(line, index + 1);
        }
      });
    this.patterns.reverse();
  }

  /** Returns the last pattern that matches the path, null without one. */
  match(path: string, isFolder: boolean): IgnoreMatch | null {
    const name = path.slice(path.lastIndexOf("/") + 1);
    return (
      this.patterns.find(
        (pattern) =>
          (isFolder || !pattern.onlyFolders) && pattern.regex.test(pattern.matchesName ? name : path),
      ) ?? null
    );
  }

  private add(line: string, number: number): void {
    const isNegative = line.startsWith("!");
    let text = isNegative ? line.slice(1) : line;
    const onlyFolders = text.endsWith("/");
    text = onlyFolders ? text.slice(0, -1) : text;
    const matchesName = !text.includes("/");
    const isLiteral = !SPECIAL.test(text);
    const source = toRegex(text.replace(/^\//, ""), !matchesName);
    if (source !== null && text !== "") {
      this.patterns.push({
        excluded: !isNegative,
        isLiteral,
        line: number,
        onlyFolders,
        matchesName,
        regex: new RegExp(`^${source}$`, "su"),
      });
    }
  }
}

function withoutTrailingSpaces(text: string): string {
  let end = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && at + 1 < text.length) {
      at += 1;
      end = at + 1;
    } else if (text[at] !== " ") {
      end = at + 1;
    }
  }
  return text.slice(0, end);
}

function escapeRegex(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

/** Returns a regular expression for the whole pattern, null for a pattern that matches nothing. */
function toRegex(pattern: string, isPath: boolean): string | null {
  let out = "";
  let at = 0;
  while (at < pattern.length) {
    const character = pattern[at] ?? "";
    if (character === "*") {
      let end = at;
      while (pattern[end] === "*") {
        end += 1;
      }
      const startsPart = at === 0 || pattern[at - 1] === "/";
      const endsPart = end === pattern.length || pattern[end] === "/";
      if (isPath && end - at > 1 && startsPart && endsPart) {
        if (pattern[end] === "/") {
          out += "(?:.*/)?";
          end += 1;
        } else {
          out += ".*";
        }
      } else {
        out += isPath ? "[^/]*" : ".*";
      }
      at = end;
    } else if (character === "?") {
      out += isPath ? "[^/]" : ".";
      at += 1;
    } else if (character === "[") {
      const bracket = parseBracket(pattern, at + 1);
      if (bracket === null) {
        return null;
      }
      out += (isPath ? "(?!/)" : "") + bracket.source;
      at = bracket.end;
    } else if (character === "\\") {
      if (at + 1 === pattern.length) {
        return null;
      }
      const next = String.fromCodePoint(pattern.codePointAt(at + 1) ?? 0);
      out += escapeRegex(next);
      at += 1 + next.length;
    } else {
      const whole = String.fromCodePoint(pattern.codePointAt(at) ?? 0);
      out += escapeRegex(whole);
      at += whole.length;
    }
  }
  return out;
}

/** Returns a bracket expression, and the position after it; null without an end. `start`: after `[`. */
function parseBracket(pattern: string, start: number): { source: string; end: number } | null {
  let at = start;
  const isNegative = pattern[at] === "!" || pattern[at] === "^";
  at += isNegative ? 1 : 0;
  let members = "";
  for (let isFirst = true; isFirst || pattern[at] !== "]"; isFirst = false) {
    if (at >= pattern.length) {
      return null;
    }
    const named = /^\[:([a-z]+):\]/.exec(pattern.slice(at));
    if (named) {
      const known = CLASSES[named[1] ?? ""];
      if (known === undefined) {
        return null;
      }
      members += known;
      at += named[0].length;
      continue;
    }
    if (pattern[at] === "\\") {
      at += 1;
    }
    const from = pattern[at];
    if (from === undefined) {
      return null;
    }
    at += 1;
    if (pattern[at] === "-" && pattern[at + 1] !== "]" && pattern[at + 1] !== undefined) {
      at += pattern[at + 1] === "\\" ? 2 : 1;
      const to = pattern[at];
      if (to === undefined) {
        return null;
      }
      at += 1;
      members += from <= to ? `${escapeMember(from)}-${escapeMember(to)}` : "";
    } else {
      members += escapeMember(from);
    }
  }
  if (members === "") {
    return { source: isNegative ? "." : "(?!)", end: at + 1 };
  }
  return { source: `[${isNegative ? "^" : ""}${members}]`, end: at + 1 };
}

function escapeMember(character: string): string {
  return /[\\\]^\-[&]/.test(character) ? `\\${character}` : character;
}
