import { expect, test } from "vitest";
import { cssColor, MAX_LINE, parseLine, plainText } from "./ansi";

const spans = (line: string) => parseLine(line).spans;

test("colours and attributes become styles of spans", () => {
  expect(spans("\x1b[1;31mred\x1b[0m plain \x1b[38;5;208mo\x1b[48;2;1;2;255mb")).toEqual([
    { text: "red", style: { bold: true, color: 1 } },
    { text: " plain ", style: {} },
    { text: "o", style: { color: 208 } },
    { text: "b", style: { color: 208, background: "#0102ff" } },
  ]);
  expect(cssColor(9)).toBe("var(--ansi-9)");
  expect(cssColor(196)).toBe("rgb(255 0 0)");
  expect(cssColor(255)).toBe("rgb(238 238 238)");
});

test("carriage returns overwrite, as in a terminal", () => {
  expect(plainText("10%\r50%\r100%")).toBe("100%");
  expect(plainText("longer text\rshort")).toBe("shortr text");
  expect(plainText("longer text\r\x1b[Kshort")).toBe("short");
  expect(plainText("windows\r")).toBe("windows");
  expect(plainText("ab\b\bcd")).toBe("cd");
  expect(plainText("abc\x1b[2Gx\x1b[3Cy")).toBe("axc  y");
});

test.each([
  ["\x1b[2J\x1b[H\x1b[5Acleared", "cleared"],
  ["\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07", "click"],
  ["\x1b]8;;javascript:alert(1)\x1b\\click\x1b]8;;\x1b\\", "click"],
  ["\x1b]0;title without an end", ""],
  ["\x9b31mred", "red"],
  ["\x9d0;title\x9ctext", "text"],
  ["\x1bP1$qm\x1b\\after", "after"],
  ["a\x00\x07b\x7f\x85c", "abc"],
  ["\x1b", ""],
  ["\x1b[", ""],
  ["<script>alert(1)</script>\x1b[m", "<script>alert(1)</script>"],
  ["\x1b[99999999999Gx", " ".repeat(MAX_LINE - 1) + "x"],
  ["abc\u202Ecod.exe", "abc\u202Ecod.exe".replace("\u202E", "�")],
])("hostile sequences do nothing: %j", (line, text) => {
  expect(
    spans(line)
      .map((span) => span.text)
      .join(""),
  ).toBe(text);
});

test("colours out of range have no effect", () => {
  expect(spans("\x1b[38;5;999mx\x1b[38;2;1;2;999my\x1b[38mz")).toEqual([
    { text: "x", style: {} },
    { text: "y", style: {} },
    { text: "z", style: {} },
  ]);
});

test("long lines are cut, and of progress bars the newest state is kept", () => {
  const cut = parseLine("x".repeat(10_000_000));
  expect(cut.hidden).toBe(10_000_000 - MAX_LINE);
  expect(cut.spans[0]?.text.length).toBe(MAX_LINE);
  const bar = Array.from({ length: 500_000 }, (_, step) => `step ${step}`).join("\r");
  expect(plainText(bar)).toBe("step 499999");
  expect(plainText("\x1b[31m".repeat(2_000_000))).toBe("");
});
