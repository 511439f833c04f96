/** What bytes are, by their content: names and declared types of users' files are not believed. */

const MAGIC: readonly (readonly [string, readonly (number | null)[]])[] = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46, null, null, null, null, 0x57, 0x45, 0x42, 0x50]],
];

/** Returns the type of a picture that cannot hold script; null for all else, SVG included. */
export function imageType(bytes: Uint8Array): string | null {
  const found = MAGIC.find(([, magic]) => magic.every((byte, at) => byte === null || bytes[at] === byte));
  return found?.[0] ?? null;
}

/** Returns the first characters of a text; null if the bytes are none. */
export function previewText(bytes: Uint8Array, maxLength: number): string | null {
  const head = bytes.subarray(0, maxLength);
  if (head.includes(0)) {
    return null;
  }
  const text = new TextDecoder().decode(head, { stream: head.length < bytes.length });
  const damaged = text.split("\ufffd").length - 1;
  return damaged > text.length / 20 ? null : text;
}
