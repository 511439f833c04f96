import { expect, it } from "vitest";
import { countLines, lineOf, withLine } from "./line_address";

it("counts lines as an editor does", () => {
  expect(["", "a", "a\n", "a\nb", "\n\n"].map(countLines)).toEqual([1, 1, 1, 2, 2]);
});

it("reads and writes the line of an address", () => {
  const search = new URLSearchParams("file=a%26b.py&line=3");
  expect(lineOf(search)).toBe(3);
  expect(withLine(search, 12)).toBe("file=a%26b.py&line=12");
  expect(["0", "-1", "1.5", "x", "9999999999"].map((line) => lineOf(new URLSearchParams({ line })))).toEqual(
    Array(5).fill(null),
  );
});
