/** Computes BLAKE3 digests beside the page, which stays quick. */
import { hashBytes } from "./hash_bytes";

self.onmessage = ({ data }: MessageEvent<{ id: number; bytes: ArrayBuffer }>) => {
  self.postMessage({ id: data.id, digest: hashBytes(new Uint8Array(data.bytes)) });
};
