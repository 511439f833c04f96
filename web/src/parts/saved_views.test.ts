import { expect, test } from "vitest";
import { viewsOf } from "./saved_views";

const stored = (name: string, view: object) => ({
  name,
  user: "ada",
  shared: false,
  revision: 3,
  view: view as Record<string, never>,
});

test("a page has its own views, in today's form, and ignores what it cannot read", () => {
  const views = [
    stored("best", { page: "runs", search: "b=2&a=1" }),
    stored("panels", { page: "compare", search: "" }),
    stored("old", { page: "runs", search: 7 }),
  ];
  const sorted = (search: string) => search.split("&").sort().join("&");
  expect(viewsOf("runs", views, sorted)).toEqual([
    { name: "best", user: "ada", isShared: false, revision: 3, search: "a=1&b=2" },
  ]);
});
