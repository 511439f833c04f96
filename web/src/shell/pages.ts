/** The pages of the navigation, in its order. A page is here once it exists. */
import type { ComponentType } from "preact";
import { lazy } from "preact/compat";

export interface Page {
  path: string;
  title: string;
  key: string; // after `g`, as in `g r`
  component: ComponentType;
}

export const PAGES: readonly Page[] = [
  {
    path: "/runs",
    title: "Runs",
    key: "r",
    component: lazy(() => import("@/pages/runs/runs_page").then((page) => page.RunsPage)),
  },
];

/** Pages that other pages lead to. */
export const OTHER_PAGES: readonly Pick<Page, "path" | "component">[] = [
  {
    path: "/compare",
    component: lazy(() => import("@/pages/compare/compare_page").then((page) => page.ComparePage)),
  },
];
