import { expect, test } from "vitest";
import { isErrorLine, LineIndex, MergedLines } from "./log_lines";

const bytes = (text: string) => new TextEncoder().encode(text);

test("the index does not depend on where chunks are cut", () => {
  const text = "one\ntwo two\n\nthree: ü\nopen";
  const whole = bytes(text);
  for (let size = 1; size <= whole.length; size += 1) {
    const index = new LineIndex();
    for (let at = 0; at < whole.length; at += size) {
      index.append(whole.subarray(at, at + size));
    }
    const lines = Array.from({ length: index.count }, (_, line) =>
      new TextDecoder().decode(whole.subarray(...index.rangeOf(line))),
    );
    expect(lines).toEqual(text.split("\n"));
  }
});

test("a final line feed begins no line", () => {
  const index = new LineIndex();
  expect(index.count).toBe(0);
  index.append(bytes("one\n"));
  expect(index.count).toBe(1);
  index.append(bytes("\n".repeat(100_000)));
  expect(index.count).toBe(100_001);
});

test("one line of 10 MB is one line", () => {
  const index = new LineIndex();
  for (let part = 0; part < 10; part += 1) {
    index.append(new Uint8Array(1 << 20).fill(120));
  }
  expect(index.count).toBe(1);
  expect(index.rangeOf(0)).toEqual([0, 10 << 20]);
});

test("ranks that write at once are merged line by line", () => {
  const merged = new MergedLines();
  merged.append("0", bytes("a1"));
  merged.append("1", bytes("b1\nb2"));
  merged.append("0", bytes("a1\na2\n"));
  merged.append("1", bytes("\n"));
  expect(merged.lines).toEqual([
    { source: "0", text: "a1a1" },
    { source: "1", text: "b1" },
    { source: "1", text: "b2" },
    { source: "0", text: "a2" },
  ]);
});

test("characters that are cut between chunks stay whole, and progress bars do not grow", () => {
  const merged = new MergedLines();
  const umlaut = bytes("ü");
  merged.append("0", umlaut.subarray(0, 1));
  merged.append("0", umlaut.subarray(1));
  expect(merged.lines[0]?.text).toBe("ü");
  for (let step = 0; step < 20_000; step += 1) {
    merged.append("0", bytes(`\rstep ${step} ........`));
  }
  expect(merged.lines).toHaveLength(1);
  expect(merged.lines[0]?.text.length).toBeLessThan(70_000);
  expect(merged.lines[0]?.text.endsWith("step 19999 ........")).toBe(true);
});

test.each([
  ["Traceback (most recent call last):", true],
  ["torch.cuda.OutOfMemoryError: CUDA out of memory.", true],
  ["ValueError: x", true],
  ["2026-01-01 ERROR something", true],
  ["train_error 0.3", false],
  ["the Error rate falls", false],
])("%j is an error: %j", (line, expected) => {
  expect(isErrorLine(line)).toBe(expected);
});
