import { blake3 } from "@noble/hashes/blake3.js";
import { bytesToHex } from "@noble/hashes/utils.js";

/** Returns the BLAKE3 digest in hex. */
export function hashBytes(bytes: Uint8Array): string {
  return bytesToHex(blake3(bytes));
}
