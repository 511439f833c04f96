/** Tags as one line of text: `team=vision baseline "long key=a value"`. */

const QUOTED = /"(?:[^"\\]|\\.)*"|[^\s"]+/g;

function quote(text: string): string {
  return /[\s"\\]/.test(text) || text === "" ? `"${text.replace(/["\\]/g, "\\$&")}"` : text;
}

export function formatTags(tags: Readonly<Record<string, string>>): string {
  return Object.entries(tags)
    .map(([key, value]) => quote(value === "" ? key : `${key}=${value}`))
    .join(" ");
}

export function parseTags(text: string): Record<string, string> {
  const tags: Record<string, string> = {};
  for (const [word] of text.matchAll(QUOTED)) {
    const plain = word.startsWith('"') ? word.slice(1, -1).replace(/\\(.)/g, "$1") : word;
    const [key = "", ...rest] = plain.split("=");
    if (key !== "") {
      tags[key] = rest.join("=");
    }
  }
  return tags;
}
