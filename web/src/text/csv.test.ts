import { expect, test } from "vitest";
import { parseCsv } from "./csv";

test("quotes, line ends and delimiters", () => {
  expect(parseCsv('\ufeffa,b\r\n"x, ""y""\nz",2\r\n3,\n')).toEqual({
    header: ["a", "b"],
    rows: [
      ['x, "y"\nz', "2"],
      ["3", ""],
    ],
    isTruncated: false,
  });
  expect(parseCsv("a\tb\n1\t2").rows).toEqual([["1", "2"]]);
  expect(parseCsv("a;b\n1;2,5").rows).toEqual([["1", "2,5"]]);
  expect(parseCsv("")).toEqual({ header: [], rows: [], isTruncated: false });
});

test("an open quote and a trailing delimiter at the end", () => {
  expect(parseCsv('a,b\n1,"open').rows).toEqual([["1", "open"]]);
  expect(parseCsv("a,b\n1,").rows).toEqual([["1", ""]]);
});

test("rows and columns are limited", () => {
  const csv = parseCsv(`${"x,".repeat(10_000)}x\n`.repeat(20), 5, 3);
  expect(csv.header).toEqual(["x", "x", "x"]);
  expect(csv.rows).toHaveLength(5);
  expect(csv.isTruncated).toBe(true);
});
