import { expect, test } from "vitest";
import type { Batch } from "./batch";
import { consequences } from "./batch";
import type { Run } from "./columns";
import { move } from "./columns_menu";
import { completeName } from "./completion";
import { formatTags, parseTags } from "./tags";

test("tags survive their text", () => {
  const tags = { team: "vision", baseline: "", "long key": 'a "b" \\ c', a: "b=c" };
  expect(parseTags(formatTags(tags))).toEqual(tags);
  expect(parseTags("  team=vision  best ")).toEqual({ team: "vision", best: "" });
});

test("the last name of a filter is completed, also without its prefix", () => {
  const names = ["phase", "params.lr", "params.layers", "metrics.val_acc"];
  expect(completeName("phase = failed and params.l", names)).toEqual([
    "phase = failed and params.lr",
    "phase = failed and params.layers",
  ]);
  expect(completeName("val", names)).toEqual(["metrics.val_acc"]);
  expect(completeName("params.lr", names)).toEqual([]);
  expect(completeName("params.lr < ", names)).toEqual([]);
});

test("columns move within the ends of their list", () => {
  expect(move(["a", "b", "c"], "b", -1)).toEqual(["b", "a", "c"]);
  expect(move(["a", "b", "c"], "c", 1)).toEqual(["a", "b", "c"]);
});

test("the dialog says what happens to live and to ended runs", () => {
  const runs = ["running", "failed", "succeeded"].map((phase) => ({ phase }) as Run);
  expect(consequences("stop", runs, null).join(" ")).toMatch(/1 run will stop.*2 runs already ended/);
  const preview: Batch = { results: [], frees_bytes: 2048 };
  expect(consequences("delete", runs, preview).join(" ")).toMatch(
    /2 runs will be deleted.*1 run will be kept.*frees about 2 KiB/,
  );
});
