/** What to type in place of a filter that finds nothing. */
import { FIELDS, isSortable, queryName } from "./columns";
import { isQuery } from "./view";

const MAX_NAMES = 24;
const ALIASES: Readonly<Record<string, string>> = { status: "phase", state: "phase", owner: "user" };

/** Returns the query that words like `status failed` seem to mean, else null. names: that a query may use. */
export function likelyQuery(filter: string, names: readonly string[]): string | null {
  const [, word = "", value = ""] = /^\s*(\S+)\s+(?:is\s+)?(\S.*?)\s*$/.exec(filter) ?? [];
  if (isQuery(filter) || value === "") {
    return null;
  }
  const typed = word.toLowerCase().replace(/:$/, "");
  const wanted = ALIASES[typed] ?? typed;
  const name =
    names.find((each) => each.toLowerCase() === wanted) ??
    names.find((each) => /^(params|metrics|tags)\./.test(each) && each.slice(each.indexOf(".") + 1) === word);
  const isPlain = Number.isFinite(Number(value));
  return name === undefined ? null : `${name} = ${isPlain ? value : `'${value.replaceAll("'", "")}'`}`;
}

/** Returns the names that a query may use: fields of all runs, then those of these runs. */
export function fieldNames(names: readonly string[]): string[] {
  const fields = Object.keys(FIELDS).filter(isSortable).map(queryName);
  return [...new Set([...fields, ...names])].slice(0, MAX_NAMES);
}
