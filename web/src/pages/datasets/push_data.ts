/** What a new version of a dataset needs, and whether it may be sent. */
import type { Dataset } from "@/api/datasets";

// as `hopyard.domain.ids`
const NAME = /^(?!.*\.\.)[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?$/;
const NAME_RULE = "letters, digits, ., _ and -, beginning with a letter or digit, at most 128";
const ORIGIN = /^[^:]+(:[1-9]\d*)?$/;

/** Which values of the metric are better; "": as its name implies. */
export type Direction = "" | "higher" | "lower";

export interface PushDraft {
  name: string;
  message: string;
  origin: string;
  metric: string;
  direction: Direction;
}

/** Returns what is wrong with the name, "" for nothing. */
export function nameProblem(name: string): string {
  return name === "" || NAME.test(name) ? "" : `this is not a name: a name is made of ${NAME_RULE}`;
}

/** Returns what is wrong with the origin, "" for nothing. */
export function originProblem(origin: string, datasets: readonly Dataset[]): string {
  if (origin === "") {
    return "";
  }
  if (!ORIGIN.test(origin)) {
    return "write NAME:VERSION, or NAME for its newest version";
  }
  const [name, number] = origin.split(":");
  const found = datasets.find((each) => each.name === name);
  if (found === undefined) {
    return `there is no dataset ${name ?? ""}`;
  }
  return number !== undefined && found.newest && Number(number) > found.newest.number
    ? `the newest version of ${found.name} is ${found.newest.number}`
    : "";
}

/** Returns the name that a chosen folder or file suggests. */
export function suggestedName(chosen: string): string {
  return chosen
    .replace(/\.(tar\.gz|tgz|tar|zip|csv|tsv|parquet|jsonl?|npz|npy|h5|txt)$/i, "")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/\.{2,}/g, ".")
    .replace(/^[^A-Za-z0-9]+|[^A-Za-z0-9_]+$/g, "")
    .slice(0, 100)
    .toLowerCase();
}
