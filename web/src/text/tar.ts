/** Files as one tar archive (POSIX.1-2001): names beyond 100 bytes of ASCII have a header of their own. */

const BLOCK = 512;

export interface TarEntry {
  path: string;
  bytes: Uint8Array<ArrayBuffer>;
}

/** Returns the archive in parts, in order. `modifiedAt`: of all files, in seconds since 1970. */
export function tarParts(entries: readonly TarEntry[], modifiedAt: number): Uint8Array<ArrayBuffer>[] {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const add = (name: string, kind: "0" | "x", bytes: Uint8Array<ArrayBuffer>) => {
    parts.push(header(name, kind, bytes.length, modifiedAt), bytes);
    parts.push(new Uint8Array((BLOCK - (bytes.length % BLOCK)) % BLOCK));
  };
  for (const { path, bytes } of entries) {
    const isPlain = /^[\x20-\x7e]{1,100}$/.test(path);
    if (!isPlain) {
      add("name", "x", record("path", path));
    }
    add(isPlain ? path : "file", "0", bytes);
  }
  return [...parts, new Uint8Array(2 * BLOCK)];
}

function header(name: string, kind: string, size: number, modifiedAt: number): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const write = (at: number, text: string) => block.set(new TextEncoder().encode(text), at);
  const octal = (at: number, digits: number, value: number) =>
    write(at, Math.floor(value).toString(8).padStart(digits, "0"));
  write(0, name);
  octal(100, 7, 0o644);
  octal(108, 7, 0); // user
  octal(116, 7, 0); // group
  octal(124, 11, size);
  octal(136, 11, modifiedAt);
  write(148, " ".repeat(8)); // the checksum counts its own place as spaces
  write(156, kind);
  write(257, "ustar");
  write(263, "00");
  octal(
    148,
    6,
    block.reduce((sum, byte) => sum + byte, 0),
  );
  block[154] = 0;
  return block;
}

/** Returns `LENGTH key=value`, where LENGTH counts its own digits. */
function record(key: string, value: string): Uint8Array<ArrayBuffer> {
  const rest = new TextEncoder().encode(` ${key}=${value}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) {
    length = String(length).length + rest.length;
  }
  return new Uint8Array([...new TextEncoder().encode(String(length)), ...rest]);
}
