import { savedName } from "@/text/shown_name";

/** Offers bytes, or their parts in order, as a file to keep. The browser never opens them as a page. */
export function saveFile(
  name: string,
  bytes: Uint8Array<ArrayBuffer> | readonly Uint8Array<ArrayBuffer>[],
): void {
  const address = URL.createObjectURL(
    new Blob(bytes instanceof Uint8Array ? [bytes] : [...bytes], { type: "application/octet-stream" }),
  );
  const link = document.createElement("a");
  link.href = address;
  link.download = savedName(name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
