/** What the entries of a folder are. */
import type { DatasetEntry } from "@/api/datasets";

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;

/** Whether an entry is a picture that cannot hold script. Its bytes decide in the end what is shown. */
export function isPicture(entry: DatasetEntry): boolean {
  return entry.kind === "file" && PICTURE.test(entry.path);
}

/** Whether at least half of the entries are pictures. */
export function isGallery(entries: readonly DatasetEntry[]): boolean {
  const pictures = entries.filter(isPicture).length;
  return pictures > 0 && 2 * pictures >= entries.length;
}

/** Returns the folders that lead to a folder, the top one first, by the name of the dataset. */
export function parentFolders(top: string, folder: string): { name: string; path: string }[] {
  const parts = folder.split("/").filter((part) => part !== "");
  return [
    { name: top, path: "" },
    ...parts.map((name, index) => ({ name, path: parts.slice(0, index + 1).join("/") })),
  ];
}
