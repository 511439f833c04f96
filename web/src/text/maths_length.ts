/** Lengths of formulas. The rules are those of `server/report_export/maths.py`, which exports the same text. */

const [MIN_EM, MAX_EM] = [-2, 20];
const EM_OF_UNIT: Readonly<Record<string, number>> = {
  ...{ "": 1, em: 1, ex: 0.5, mu: 1 / 18, "%": 0.01, px: 1 / 16, pt: 1 / 12 },
  ...{ pc: 1, mm: 0.236, cm: 2.36, in: 6 },
};
const KEYWORDS: readonly string[] = ["thin", "medium", "thick"];
const LENGTHS: readonly string[] = [
  ...["lspace", "rspace", "minsize", "maxsize", "linethickness", "width", "height", "depth"],
  ...["rowspacing", "columnspacing"],
];
const MAX_SPAN = 50; // columns or rows

/** Returns the value of an attribute within bounds, so that a formula stays in its place; null: leave it out. */
export function boundAttribute(name: string, value: string): string | null {
  if (LENGTHS.includes(name)) {
    const parts = value.trim().split(/\s+/).map(boundLength);
    return parts.includes(null) ? null : parts.join(" ");
  }
  if (name === "columnspan" || name === "rowspan") {
    return /^\d{1,2}$/.test(value) && Number(value) <= MAX_SPAN ? value : null;
  }
  return name === "scriptlevel" && !/^\+?[0-3]$/.test(value) ? null : value; // below 0, text grows
}

function boundLength(text: string): string | null {
  const [, number, unit = ""] = /^([+-]?(?:\d+\.?\d*|\.\d+))([a-z]*|%)$/.exec(text) ?? [];
  const em = EM_OF_UNIT[unit];
  if (number === undefined || em === undefined) {
    return KEYWORDS.includes(text) ? text : null;
  }
  const size = Number(number) * em;
  return size > MAX_EM ? `${MAX_EM}em` : size < MIN_EM ? `${MIN_EM}em` : text;
}
