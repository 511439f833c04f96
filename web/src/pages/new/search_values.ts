/** The keys of a search file that the form shows and changes, beside those of a run. */
import type { Value, Values } from "./run_values";

export type RangeKind = "real" | "whole" | "choice" | "expression";

/** The range of one parameter. `text`: the values of a choice, or an expression as in a search file. */
export interface RangeRow {
  name: string;
  kind: RangeKind;
  low: string;
  high: string;
  isLog: boolean;
  text: string;
}

/** `searcher`: "" for the default. `options`: of the searcher, which the form does not show. */
export interface SearchForm {
  metric: string;
  goal: "" | "max" | "min";
  searcher: string;
  options: Values;
  eta: string;
  minEpochs: string;
  trials: string;
  concurrent: string;
  budget: string;
  budgetUnit: "epochs" | "steps";
  seed: string;
  space: RangeRow[];
}

export const NEW_RANGE: RangeRow = { name: "", kind: "real", low: "", high: "", isLog: false, text: "" };
export const NEW_SEARCH: SearchForm = {
  metric: "",
  goal: "",
  searcher: "",
  options: {},
  eta: "",
  minEpochs: "",
  trials: "20",
  concurrent: "",
  budget: "",
  budgetUnit: "epochs",
  seed: "",
  space: [NEW_RANGE],
};

/** Searchers that stop most trials early, at rungs. */
export const RUNG_SEARCHERS: ReadonlySet<string> = new Set(["asha", "halving", "hyperband", "bohb"]);
const MAX_RUNGS = 12;

/** Returns whether the values of a file are those of a study, as the server decides it. */
export function isStudyFile(values: Values): boolean {
  return "space" in values;
}

/** Returns the keys of the file that the form describes. */
export function searchValues(search: SearchForm): Values {
  const name = search.searcher;
  const options = {
    ...search.options,
    ...(RUNG_SEARCHERS.has(name) && {
      ...given("eta", search.eta),
      ...given("min_epochs", search.minEpochs),
    }),
  };
  return {
    metric: search.metric.trim(),
    ...(search.goal !== "" && { goal: search.goal }),
    ...(name !== "" && { searcher: Object.keys(options).length > 0 ? { name, ...options } : name }),
    ...given("trials", search.trials),
    ...given("concurrent", search.concurrent),
    ...given(search.budgetUnit, search.budget),
    ...given("seed", search.seed),
    space: Object.fromEntries(
      search.space
        .filter(({ name: each }) => each.trim() !== "")
        .map((row) => [row.name.trim(), rangeOf(row)]),
    ),
  };
}

/** Returns the names of the parameters that have a range. */
export function searchedNames(search: SearchForm | null): string[] {
  return search?.space.map(({ name }) => name.trim()).filter((name) => name !== "") ?? [];
}

/** Returns the file of a study around a run. A range replaces the value of its parameter. */
export function studyValues(run: Values, search: SearchForm): Values {
  const { params, ...rest } = run;
  const searched = new Set(searchedNames(search));
  const fixed = Object.entries((params ?? {}) as Values).filter(([name]) => !searched.has(name));
  return {
    ...rest,
    ...(fixed.length > 0 && { params: Object.fromEntries(fixed) }),
    ...searchValues(search),
  };
}

/** Returns the form of a search file, and the other keys; null for one that the form cannot show. */
export function searchOf(values: Values): { search: SearchForm; rest: Values } | null {
  const { metric, goal, mode, searcher, trials, concurrent, epochs, steps, seed, space, ...rest } = values;
  if (!isMapping(space)) {
    return null;
  }
  const rows = Object.entries(space).map(([name, range]) => rowOf(name, range));
  const direction = textOf(goal ?? mode);
  const [name, allOptions] = isMapping(searcher)
    ? [textOf(searcher["name"]), without(searcher, "name")]
    : [textOf(searcher), {}];
  const { eta, min_epochs: minEpochs, ...options } = allOptions;
  const isShown = RUNG_SEARCHERS.has(name);
  if (rows.some((row) => row === null) || !["", "max", "min"].includes(direction)) {
    return null;
  }
  return {
    search: {
      metric: textOf(metric),
      goal: direction as SearchForm["goal"],
      searcher: name,
      options: isShown ? options : allOptions,
      eta: isShown ? textOf(eta) : "",
      minEpochs: isShown ? textOf(minEpochs) : "",
      trials: textOf(trials),
      concurrent: textOf(concurrent),
      budget: textOf(steps ?? epochs),
      budgetUnit: steps !== undefined && steps !== null ? "steps" : "epochs",
      seed: textOf(seed),
      space: rows.filter((row) => row !== null),
    },
    rest,
  };
}

/** Returns the budgets at which a searcher compares trials, "" where they are unknown. */
export function rungsText(search: SearchForm): string {
  const [budget, eta, low] = [Number(search.budget), Number(search.eta || 3), Number(search.minEpochs || 1)];
  const isKnown = [budget, eta, low].every(Number.isInteger) && eta >= 2 && low >= 1 && budget >= low;
  if (!isKnown || !RUNG_SEARCHERS.has(search.searcher) || search.budgetUnit !== "epochs") {
    return "";
  }
  const rungs: number[] = [];
  for (let rung = low; rung < budget && rungs.length < MAX_RUNGS; rung *= eta) {
    rungs.push(rung);
  }
  return `compares trials at ${[...rungs, budget].join(", ")} epochs; about one in ${eta} continues`;
}

/** Returns what is wrong with a row before the server looks at it, "" for nothing. */
export function rangeProblem(row: RangeRow): string {
  const isEmpty = row.low === "" && row.high === "" && row.text === "";
  if (row.name.trim() === "") {
    return isEmpty ? "" : "give the parameter a name";
  }
  if (row.kind === "choice" || row.kind === "expression") {
    return row.text.trim() === "" ? "give its values" : "";
  }
  const [low, high] = [numberOf(row.low), numberOf(row.high)];
  if (low === null || high === null) {
    return isEmpty ? "give both ends" : "both ends are numbers: 0.001 or 1e-3";
  }
  if (row.kind === "whole" && ![low, high].every(Number.isInteger)) {
    return "both ends are whole numbers";
  }
  if (low > high) {
    return "the lower end comes first";
  }
  return row.isLog && low <= 0 ? "a logarithmic range begins above 0" : "";
}

function rangeOf(row: RangeRow): unknown {
  switch (row.kind) {
    case "choice":
      return choiceValues(row.text);
    case "expression":
      return row.text.trim();
    default:
      return {
        type: row.kind === "real" ? "float" : "int",
        low: numberOf(row.low) ?? row.low,
        high: numberOf(row.high) ?? row.high,
        ...(row.isLog && { log: true }),
      };
  }
}

function rowOf(name: string, range: unknown): RangeRow | null {
  const row = { ...NEW_RANGE, name };
  if (typeof range === "string") {
    return { ...row, kind: "expression", text: range };
  }
  if (Array.isArray(range)) {
    return range.every(isScalar) ? { ...row, kind: "choice", text: range.map(wordOf).join(", ") } : null;
  }
  if (!isMapping(range)) {
    return null;
  }
  const { type, low, high, log, ...others } = range;
  const isNumeric = typeof low === "number" && typeof high === "number";
  if (!isNumeric || !["float", "int"].includes(String(type)) || Object.keys(others).length > 0) {
    return null;
  }
  const kind = type === "float" ? "real" : "whole";
  return { ...row, kind, low: String(low), high: String(high), isLog: log === true };
}

/** Returns the values of a list as one types it: `16, 32`, `adam, sgd`, `"a, b", true`. */
export function choiceValues(text: string): Value[] {
  const words = text.match(/\s*"(?:[^"\\]|\\.)*"\s*|[^,]+/g) ?? [];
  return words
    .map((word) => word.trim())
    .filter((word) => word !== "")
    .map(valueOfWord);
}

function valueOfWord(word: string): Value {
  if (word.startsWith('"')) {
    try {
      return JSON.parse(word) as string;
    } catch {
      return word;
    }
  }
  if (word === "true" || word === "false") {
    return word === "true";
  }
  return word === "null" ? null : (numberOf(word) ?? word);
}

function wordOf(value: Value): string {
  return typeof value === "string" && (valueOfWord(value) !== value || /[",]|^\s|\s$|^$/.test(value))
    ? JSON.stringify(value)
    : String(value);
}

function given(key: string, text: string): Values {
  return text.trim() === "" ? {} : { [key]: numberOf(text) ?? text.trim() };
}

function numberOf(text: string): number | null {
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? number : null;
}

function without(mapping: Values, key: string): Values {
  return Object.fromEntries(Object.entries(mapping).filter(([each]) => each !== key));
}

function isScalar(value: unknown): value is Value {
  return value === null || ["string", "number", "boolean"].includes(typeof value);
}

function isMapping(value: unknown): value is Values {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function textOf(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}
