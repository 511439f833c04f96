/** The frames of `follow`: lines of JSON, those of output followed by bytes; and packs of blobs. */

export interface Frame {
  kind: "state" | "output" | "progress" | "ping" | "end";
  attempt?: string;
  rank?: number;
  stream?: string;
  offset?: number;
  size?: number;
}

/** Cuts bytes into frames, wherever the bytes are cut. */
export class FrameParser {
  private rest = new Uint8Array(0);

  /** Returns the frames that are complete now, each with its bytes. */
  push(bytes: Uint8Array): { frame: Frame; bytes: Uint8Array }[] {
    let buffer = bytes;
    if (this.rest.length > 0) {
      buffer = new Uint8Array(this.rest.length + bytes.length);
      buffer.set(this.rest);
      buffer.set(bytes, this.rest.length);
    }
    const frames: { frame: Frame; bytes: Uint8Array }[] = [];
    let at = 0;
    for (;;) {
      const end = buffer.indexOf(10, at);
      if (end < 0) {
        break;
      }
      const frame = JSON.parse(new TextDecoder().decode(buffer.subarray(at, end))) as Frame;
      const size = frame.kind === "output" ? (frame.size ?? 0) : 0;
      if (end + 1 + size > buffer.length) {
        break;
      }
      frames.push({ frame, bytes: buffer.subarray(end + 1, end + 1 + size) });
      at = end + 1 + size;
    }
    this.rest = buffer.slice(at);
    return frames;
  }
}

/** Returns the bytes of the blobs of a pack, concatenated. Throws where the pack is cut off. */
export function joinBlobs(pack: Uint8Array): Uint8Array<ArrayBuffer> {
  const view = new DataView(pack.buffer, pack.byteOffset, pack.byteLength);
  const parts: Uint8Array[] = [];
  let size = 0;
  for (let at = 0; at < pack.length;) {
    const length = at + 40 <= pack.length ? Number(view.getBigUint64(at + 32, true)) : Infinity;
    if (at + 40 + length > pack.length) {
      throw new Error("the content arrived incomplete");
    }
    parts.push(pack.subarray(at + 40, at + 40 + length));
    size += length;
    at += 40 + length;
  }
  const joined = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
