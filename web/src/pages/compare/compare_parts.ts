import type { Signal } from "@preact/signals";
import type { Column, Run } from "./columns";
import type { CompareView } from "./compare_view";

/** What each part of the compare page gets. `labels`: of the runs. `hidden`: ids of runs, or names of groups. */
export interface CompareParts {
  runs: readonly Run[];
  labels: readonly string[];
  columns: readonly Column[];
  view: CompareView;
  change: (part: Partial<CompareView>) => void;
  highlight: Signal<string | null>;
  hidden: ReadonlySet<string>;
}
