/** What the compare page shows, as it stands in the address. */
import type { Spread } from "@/charts/grouping";
import { type MetricPair, pairName, toPairs } from "@/charts/panels";
import type { Brush, Brushes } from "@/charts/parallel_axes";

export const TABS = ["curves", "table", "scatter", "parallel", "media", "code", "environment"] as const;
export type Tab = (typeof TABS)[number];

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
  /** Of parallel coordinates: keys of columns; empty: those of the page's choice. */
  axes: readonly string[];
  logAxes: readonly string[];
  brushes: Brushes;
  colourBy: string;
  /** Of code: the runs, a file of them, and how its lines are shown. */
  base: string;
  against: string;
  file: string;
  isUnified: boolean;
  /** Of media; null: the newest. */
  step: number | null;
}

/** Reads brushes: `["params.lr", 0.01, 0.1]` and `["params.optimizer", ["adam"]]`. */
function toBrush(text: string): [string, Brush][] {
  try {
    const [key, low, high] = JSON.parse(text) as unknown[];
    if (typeof key !== "string") {
      return [];
    }
    if (Array.isArray(low)) {
      return [[key, { texts: low.filter((each) => typeof each === "string") }]];
    }
    return typeof low === "number" && typeof high === "number" ? [[key, { low, high }]] : [];
  } catch {
    return [];
  }
}

function brushText([key, brush]: readonly [string, Brush]): string {
  return JSON.stringify("texts" in brush ? [key, brush.texts] : [key, brush.low, brush.high]);
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
    pairs: toPairs(address.getAll("panel")),
    hidden: address.getAll("hide"),
    isDifferencesOnly: text("differences") === "1",
    rows: text("rows"),
    scatterX: text("sx"),
    scatterY: text("sy"),
    axes: [...new Set(address.getAll("axis"))],
    logAxes: [...new Set(address.getAll("log"))],
    brushes: new Map(address.getAll("brush").flatMap(toBrush)),
    colourBy: text("colour"),
    base: text("base"),
    against: text("against"),
    file: text("file"),
    isUnified: text("diff") === "unified",
    step: /^-?\d+$/.test(text("step")) ? Number(text("step")) : null,
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
  putAll("axis", view.axes);
  putAll("log", view.logAxes);
  putAll("brush", [...view.brushes].map(brushText));
  put("colour", view.colourBy);
  put("base", view.base);
  put("against", view.against);
  put("file", view.file);
  put("diff", view.isUnified ? "unified" : "");
  put("step", view.step === null ? "" : String(view.step));
  return address;
}

/** Returns the layout of the curves as an address, without the runs and all else that another comparison lacks. */
export function writeLayout(view: CompareView): string {
  const { x, smoothing, isLogX, isLogY, group, spread, search, pins, pairs } = view;
  const layout = { x, smoothing, isLogX, isLogY, group, spread, search, pins, pairs };
  return writeView({ ...readView(new URLSearchParams()), ...layout }).toString();
}

/** Returns the view with a layout that `writeLayout` has written. */
export function withLayout(view: CompareView, layout: string): Partial<CompareView> {
  const { x, smoothing, isLogX, isLogY, group, spread, search, pins, pairs } = readView(
    new URLSearchParams(layout),
  );
  const hidden = group === view.group ? view.hidden : []; // names of groups
  return { x, smoothing, isLogX, isLogY, group, spread, search, pins, pairs, hidden };
}
