import { describe, expect, it } from "vitest";
import { cutWindow, WINDOW_BYTES, windowCount, windowRange } from "./line_window";

function windows(text: string): string[] {
  const bytes = new TextEncoder().encode(text);
  return Array.from({ length: windowCount(bytes.length) }, (_, index) => {
    const { begin, end } = windowRange(index, bytes.length);
    return new TextDecoder().decode(cutWindow(bytes.slice(begin, end), index));
  });
}

describe("windows of lines", () => {
  it("have each line of a text once and whole", () => {
    const text = Array.from({ length: 60_000 }, (_, number) => `line ${number} é\n`).join("");
    const parts = windows(text);
    expect(parts.length).toBeGreaterThan(2);
    expect(parts.join("")).toBe(text);
    expect(parts.every((part) => part.startsWith("line ") && part.endsWith("\n"))).toBe(true);
  });

  it("keep a line that ends exactly at a boundary in its window", () => {
    const first = `${"a".repeat(WINDOW_BYTES - 1)}\n`;
    expect(windows(`${first}b\nc`)).toEqual([first, "b\nc"]);
  });

  it("show one window of a short text", () => {
    expect(windows("a,b\n1,2")).toEqual(["a,b\n1,2"]);
    expect(windowCount(0)).toBe(1);
  });
});
