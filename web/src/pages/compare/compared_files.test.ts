import { expect, test } from "vitest";
import { compareFiles } from "./compared_files";

const file = (path: string, content: string) => ({ path, content, sizeBytes: content.length });

test("files of runs are compared with those of the base, differences first", () => {
  const trees = [
    [file("a.py", "1"), file("b.py", "1"), file("c.py", "1")],
    [file("a.py", "1"), file("b.py", "2"), file("d.py", "1")],
  ];
  expect(compareFiles(trees, 0).map(({ path, states }) => [path, ...states])).toEqual([
    ["b.py", "same", "changed"],
    ["c.py", "same", "removed"],
    ["d.py", "absent", "added"],
    ["a.py", "same", "same"],
  ]);
  expect(compareFiles(trees, 1).map(({ path, states }) => [path, ...states])[1]).toEqual([
    "c.py",
    "added",
    "absent",
  ]);
});
