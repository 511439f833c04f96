/**
 * Markdown as tokens: CommonMark with tables, strikethrough and TeX between `$` or `$$`. HTML is text. The rules are
 * those of `server/report_export/markdown.py`, which exports the same text.
 */
import MarkdownIt from "markdown-it";

const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });

export type Token = ReturnType<typeof parser.parse>[number];

/** Reads `$x$` and `$$x$$`: without space inside of the signs, and no digit behind, so that money stays text. */
parser.inline.ruler.after("escape", "maths", (state, isSilent) => {
  const { src: source, pos: begin, posMax: end } = state;
  if (source[begin] !== "$") {
    return false;
  }
  const sign = source.startsWith("$$", begin) ? "$$" : "$";
  const first = begin + sign.length;
  let last = source.indexOf(sign, first);
  while (last > first && source[last - 1] === "\\") {
    last = source.indexOf(sign, last + 1);
  }
  if (last <= first || last + sign.length > end) {
    return false;
  }
  const tex = source.slice(first, last);
  if (sign === "$" && (/^\s|\s$/.test(tex) || /^\d/.test(source.slice(last + 1)))) {
    return false;
  }
  if (!isSilent) {
    state.push(sign === "$" ? "math_inline" : "math_display", "math", 0).content = tex.trim();
  }
  state.pos = last + sign.length;
  return true;
});

/** Reads a block from a line that begins with `$$` to one that ends with it. */
parser.block.ruler.before(
  "fence",
  "maths",
  (state, first, last, isSilent) => {
    const textOf = (line: number) =>
      state.src.slice((state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0), state.eMarks[line]).trim();
    const text = textOf(first);
    if ((state.sCount[first] ?? 0) - state.blkIndent >= 4 || !text.startsWith("$$")) {
      return false;
    }
    const lines = [text.slice(2)];
    let line = first;
    while (!lines.at(-1)?.endsWith("$$")) {
      line += 1;
      if (line >= last || state.isEmpty(line)) {
        return false;
      }
      lines.push(textOf(line));
    }
    const tex = lines.join("\n").slice(0, -2).trim();
    if (tex === "" || tex.includes("$$")) {
      return false;
    }
    if (!isSilent) {
      state.line = line + 1;
      const token = state.push("math_display", "math", 0);
      token.block = true;
      token.content = tex;
    }
    return true;
  },
  { alt: ["paragraph", "reference", "blockquote", "list"] },
);

export function parseMarkdown(text: string): Token[] {
  return parser.parse(text, {});
}

/** Returns an address that a link may have, else null: of the web, of mail, or on this server. */
export function safeAddress(address: string): string | null {
  if (/^(https?|mailto):/i.test(address)) {
    return address;
  }
  // no other scheme, and no `//host`, which leads away from the server
  return /^[^:/?#\\]*:/.test(address) || /^[/\\]{2}/.test(address) ? null : address;
}

/** Returns whether an address is a picture in the text itself. */
export function isPicture(address: string): boolean {
  return /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(address);
}
