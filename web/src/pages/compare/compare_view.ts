/** What the compare page shows, as it stands in the address. */
import type { Spread } from "@/charts/grouping";

export const TABS = ["curves", "table", "scatter", "parallel"] as const;
export type Tab = (typeof TABS)[number];

/** A panel of one metric over another. */
export interface MetricPair {
  y: string;
  x: string;
}

export interface CompareView {
  runs: readonly string[];
  tab: Tab;
  x: string;
  smoothing: number;
  isLogX: boolean;
  isLogY: boolean;
  group: string;
  spread: Spread;
  search: string;
  pins: readonly string[];
  pairs: readonly MetricPair[];
  hidden: readonly string[];
  isDifferencesOnly: boolean;
  rows: string;
  scatterX: string;
  scatterY: string;
}

const PAIR_SIGN = " vs ";
export const pairName = ({ x, y }: MetricPair): string => `${y}${PAIR_SIGN}${x}`;

function toPair(text: string): MetricPair[] {
  const place = text.indexOf(PAIR_SIGN);
  return place > 0 ? [{ y: text.slice(0, place), x: text.slice(place + PAIR_SIGN.length) }] : [];
}

/** Reads a view from the address. What it does not know is as if it was absent. */
export function readView(address: URLSearchParams): CompareView {
  const text = (name: string) => address.get(name) ?? "";
  const smoothing = Number(text("smooth"));
  return {
    runs: [...new Set(address.getAll("run"))],
    tab: TABS.find((tab) => tab === text("tab")) ?? "curves",
    x: /^(step|time|elapsed|metrics\..+)$/.test(text("x")) ? text("x") : "step",
    smoothing: smoothing > 0 && smoothing < 1 ? smoothing : 0,
    isLogX: text("logx") === "1",
    isLogY: text("logy") === "1",
    group: text("group"),
    spread: text("spread") === "deviation" ? "deviation" : "range",
    search: text("search"),
    pins: [...new Set(address.getAll("pin"))],
    pairs: [...new Set(address.getAll("panel"))].flatMap(toPair),
    hidden: address.getAll("hide"),
    isDifferencesOnly: text("differences") === "1",
    rows: text("rows"),
    scatterX: text("sx"),
    scatterY: text("sy"),
  };
}

/** Writes a view as an address, without what is as by default. */
export function writeView(view: CompareView): URLSearchParams {
  const address = new URLSearchParams();
  const put = (name: string, value: string, initial = "") => {
    if (value !== initial) {
      address.set(name, value);
    }
  };
  const putAll = (name: string, values: readonly string[]) => {
    for (const value of values) {
      address.append(name, value);
    }
  };
  putAll("run", view.runs);
  put("tab", view.tab, "curves");
  put("x", view.x, "step");
  put("smooth", String(view.smoothing), "0");
  put("logx", view.isLogX ? "1" : "");
  put("logy", view.isLogY ? "1" : "");
  put("group", view.group);
  put("spread", view.spread, "range");
  put("search", view.search);
  putAll("pin", view.pins);
  putAll("panel", view.pairs.map(pairName));
  putAll("hide", view.hidden);
  put("differences", view.isDifferencesOnly ? "1" : "");
  put("rows", view.rows);
  put("sx", view.scatterX);
  put("sy", view.scatterY);
  return address;
}

/** Returns what finds names by a regular expression, in any case of letters; null if it is not one. */
export function compilePattern(text: string): ((name: string) => boolean) | null {
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch {
    return null;
  }
}

/** Returns the names in the order of panels: the pinned ones first, then those of the most runs. */
export function orderPanels(
  counts: ReadonlyMap<string, number>,
  pins: readonly string[],
  matches: (name: string) => boolean,
): string[] {
  const others = [...counts.keys()].filter((name) => !pins.includes(name));
  others.sort((a, b) => (counts.get(b) ?? 0) - (counts.get(a) ?? 0) || (a < b ? -1 : 1));
  return [...pins.filter((name) => counts.has(name)), ...others].filter(matches);
}

/** Returns the names with one of them moved by a place. */
export function move(names: readonly string[], name: string, by: -1 | 1): string[] {
  const moved = [...names];
  const place = moved.indexOf(name);
  const other = moved[place + by];
  if (place >= 0 && other !== undefined) {
    [moved[place], moved[place + by]] = [other, name];
  }
  return moved;
}
