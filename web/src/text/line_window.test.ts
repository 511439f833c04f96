import { describe, expect, it } from "vitest";
import { cutWindow, LineCounter, WINDOW_BYTES, windowCount, windowRange, windowStart } from "./line_window";

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

describe("the numbers of lines", () => {
  const { signal } = new AbortController();

  async function checkNumbers(text: string, order: (indexes: number[]) => number[]): Promise<number> {
    const bytes = new TextEncoder().encode(text);
    let readBytes = 0;
    const counter = new LineCounter((begin, end) => {
      readBytes += end - begin;
      return Promise.resolve(bytes.slice(begin, end));
    });
    for (const index of order([...Array(windowCount(bytes.length)).keys()])) {
      const { begin, end } = windowRange(index, bytes.length);
      const start = begin + windowStart(bytes.slice(begin, end), index);
      const before = new TextDecoder().decode(bytes.slice(0, start)).split("\n").length;
      expect(await counter.lineAt(start, signal)).toBe(before);
    }
    return readBytes;
  }

  const lines = Array.from({ length: 60_000 }, (_, number) => `line ${number} é\n`).join("");

  it("are right in each window, in any order", async () => {
    const forwards = await checkNumbers(lines, (indexes) => indexes);
    expect(forwards).toBeLessThanOrEqual(lines.length * 2);
    await checkNumbers(lines, (indexes) => indexes.reverse());
    await checkNumbers(`${"a".repeat(5 * WINDOW_BYTES)}\n${lines}`, (indexes) => indexes.reverse());
  });

  it("lead to the line of an address", async () => {
    const bytes = new TextEncoder().encode(lines);
    const counter = new LineCounter((begin, end) => Promise.resolve(bytes.slice(begin, end)));
    for (const line of [1, 2, 33_333, 60_000]) {
      const offset = await counter.offsetOf(line, bytes.length, signal);
      expect(new TextDecoder().decode(bytes.slice(offset ?? 0)).split("\n")[0]).toBe(`line ${line - 1} é`);
    }
    expect(await counter.offsetOf(60_002, bytes.length, signal)).toBeNull();
  });
});
