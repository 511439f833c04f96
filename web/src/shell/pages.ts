/** The pages of the navigation, in its order. A page is here once it exists. */
import { startFirstPage } from "@/pages/runs/first_page";
import { lazy, type LazyComponent } from "./lazy";

export interface Page {
  path: string;
  title: string;
  key: string; // after `g`, as in `g r`
  component: LazyComponent<object>;
}

export const PAGES: readonly Page[] = [
  {
    path: "/runs",
    title: "Runs",
    key: "r",
    component: lazy(() => import("@/pages/runs/runs_page").then((page) => page.RunsPage)),
  },
  {
    path: "/new",
    title: "New run",
    key: "n",
    component: lazy(() => import("@/pages/new/new_page").then((page) => page.NewPage)),
  },
  {
    path: "/studies",
    title: "Studies",
    key: "t",
    component: lazy(() => import("@/pages/studies/studies_page").then((page) => page.StudiesPage)),
  },
  {
    path: "/datasets",
    title: "Datasets",
    key: "d",
    component: lazy(() => import("@/pages/datasets/datasets_page").then((page) => page.DatasetsPage)),
  },
  {
    path: "/cluster",
    title: "Cluster",
    key: "c",
    component: lazy(() => import("@/pages/cluster/cluster_page").then((page) => page.ClusterPage)),
  },
  {
    path: "/reports",
    title: "Reports",
    key: "p",
    component: lazy(() => import("@/pages/reports/reports_page").then((page) => page.ReportsPage)),
  },
  {
    path: "/settings",
    title: "Settings",
    key: ",",
    component: lazy(() => import("@/pages/settings/settings_page").then((page) => page.SettingsPage)),
  },
];

/** Pages that other pages lead to. */
export const OTHER_PAGES: readonly Pick<Page, "path" | "component">[] = [
  {
    path: "/compare",
    component: lazy(() => import("@/pages/compare/compare_page").then((page) => page.ComparePage)),
  },
  {
    path: "/datasets/:name",
    component: lazy(() => import("@/pages/dataset/dataset_page").then((page) => page.DatasetPage)),
  },
  {
    path: "/studies/*",
    component: lazy(() => import("@/pages/studies/study_page").then((page) => page.StudyPage)),
  },
  {
    path: "/reports/:id",
    component: lazy(() => import("@/pages/reports/report_page").then((page) => page.ReportPage)),
  },
  {
    path: "/inbox",
    component: lazy(() => import("@/pages/inbox/inbox_page").then((page) => page.InboxPage)),
  },
];

export const RunPage = lazy(() => import("@/pages/run/run_page").then((page) => page.RunPage));

/** Requests the code of the page at an address, and the rows of the first page, while the session is still asked for. */
export function startLoading(pathname: string, search: string): void {
  const first = pathname === "/" ? "/runs" : pathname;
  const page = [...PAGES, ...OTHER_PAGES].find(({ path }) => path === first);
  page?.component.startLoading();
  if (page === undefined && first.startsWith("/runs/")) {
    RunPage.startLoading();
  }
  if (first === "/runs") {
    startFirstPage(search);
  }
}
