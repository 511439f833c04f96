import { expect, test } from "vitest";
import { buildTree, parentsOf, visibleRows } from "./file_tree";

const FILES = ["b.txt", "a/z.py", "a/b/__proto__", "a/b/c", "constructor/x"].map((path, index) => ({
  path,
  sizeBytes: index + 1,
}));

test("folders come first and sum up what is below them", () => {
  const root = buildTree(FILES);
  expect(root.children.map((node) => node.name)).toEqual(["a", "constructor", "b.txt"]);
  expect([root.sizeBytes, root.count]).toEqual([15, 5]);
  expect([root.children[0]?.sizeBytes, root.children[0]?.count]).toEqual([9, 3]);
});

test("only open folders show their content", () => {
  const root = buildTree(FILES);
  expect(visibleRows(root, new Set()).map((row) => row.node.path)).toEqual(["a", "constructor", "b.txt"]);
  expect(visibleRows(root, new Set(["a", "a/b"])).map((row) => [row.node.path, row.depth])).toEqual([
    ["a", 0],
    ["a/b", 1],
    ["a/b/__proto__", 2],
    ["a/b/c", 2],
    ["a/z.py", 1],
    ["constructor", 0],
    ["b.txt", 0],
  ]);
});

test("folders above a path are named from the outermost", () => {
  expect(parentsOf("a/b/c.py")).toEqual(["a", "a/b"]);
  expect(parentsOf("c.py")).toEqual([]);
});
