import { expect, test } from "vitest";
import { FrameParser, joinBlobs } from "./frames";

const encoder = new TextEncoder();

test("frames arrive whole, wherever the bytes are cut", () => {
  const output =
    '{"kind":"output","attempt":"r.1","rank":0,"stream":"stdout","offset":0,"size":8}\na\n{"b"}\n';
  const stream = encoder.encode(`{"kind":"state"}\n${output}{"kind":"ping"}\n`);
  for (let size = 1; size <= stream.length; size += 7) {
    const parser = new FrameParser();
    const found: [string, string][] = [];
    for (let at = 0; at < stream.length; at += size) {
      for (const { frame, bytes } of parser.push(stream.subarray(at, at + size))) {
        found.push([frame.kind, new TextDecoder().decode(bytes)]);
      }
    }
    expect(found).toEqual([
      ["state", ""],
      ["output", 'a\n{"b"}\n'],
      ["ping", ""],
    ]);
  }
});

test("blobs of a pack are joined, and a cut pack is an error", () => {
  const pack = new Uint8Array(2 * 40 + 5);
  new DataView(pack.buffer).setBigUint64(32, 2n, true);
  pack.set(encoder.encode("ab"), 40);
  new DataView(pack.buffer).setBigUint64(42 + 32, 3n, true);
  pack.set(encoder.encode("cde"), 82);
  expect(new TextDecoder().decode(joinBlobs(pack))).toBe("abcde");
  expect(joinBlobs(new Uint8Array(0))).toHaveLength(0);
  expect(() => joinBlobs(pack.subarray(0, 84))).toThrow("incomplete");
});
