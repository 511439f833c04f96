import { expect, it } from "vitest";
import { encodeMessage, Frame, MessageReader } from "./console";

it("reads messages however their bytes arrive", () => {
  const sent = [
    { kind: Frame.OUTPUT, payload: new TextEncoder().encode("größer") },
    { kind: Frame.EXIT, payload: new Uint8Array(0) },
    { kind: 99, payload: new Uint8Array(5_000).fill(7) },
  ];
  const bytes = Uint8Array.from(sent.flatMap(({ kind, payload }) => [...encodeMessage(kind, payload)]));
  for (const size of [1, 2, 7, 1024, bytes.length]) {
    const reader = new MessageReader();
    const received = [];
    for (let at = 0; at < bytes.length; at += size) {
      received.push(...reader.feed(bytes.subarray(at, at + size)));
    }
    expect(received).toEqual(sent);
  }
});
