import { expect, it } from "vitest";
import { boundAttribute } from "./maths_length";

// the same cases as in tests/server/report_export/test_markdown.py
it.each([
  ["width", "1.5em", "1.5em"],
  ["width", "99999em", "20em"],
  ["height", "+0.833em", "+0.833em"],
  ["depth", "-99em", "-2em"],
  ["width", "9999pt", "20em"],
  ["minsize", "2000%", "2000%"],
  ["maxsize", "99999", "20em"],
  ["lspace", "-1width", null],
  ["width", "calc(9em)", null],
  ["width", "٩٩em", null],
  ["linethickness", "thin", "thin"],
  ["columnspacing", "1em 99em", "1em 20em"],
  ["columnspan", "2", "2"],
  ["rowspan", "60000", null],
  ["scriptlevel", "+1", "+1"],
  ["scriptlevel", "-9", null],
  ["notation", "box", "box"],
])("bounds %s=%s to %s", (name, value, bounded) => {
  expect(boundAttribute(name, value)).toBe(bounded);
});
