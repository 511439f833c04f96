import { describe, expect, it } from "vitest";
import type { DatasetEntry } from "@/api/datasets";
import { isGallery, isPicture, parentFolders } from "./entries";

const entry = (path: string, kind: DatasetEntry["kind"] = "file"): DatasetEntry => ({
  path,
  kind,
  size_bytes: 1,
  files: 1,
  target: "",
});

describe("entries of a folder", () => {
  it("are pictures by name, but never SVG, and never folders", () => {
    expect(isPicture(entry("a/b.PNG"))).toBe(true);
    expect(isPicture(entry("b.svg"))).toBe(false);
    expect(isPicture(entry("b.png", "folder"))).toBe(false);
  });

  it("are a gallery where half of them are pictures", () => {
    expect(isGallery([entry("a.jpg"), entry("a.txt")])).toBe(true);
    expect(isGallery([entry("a.jpg"), entry("a.txt"), entry("b.txt")])).toBe(false);
    expect(isGallery([])).toBe(false);
  });

  it("have folders above them", () => {
    expect(parentFolders("mnist", "train/0")).toEqual([
      { name: "mnist", path: "" },
      { name: "train", path: "train" },
      { name: "0", path: "train/0" },
    ]);
    expect(parentFolders("mnist", "")).toEqual([{ name: "mnist", path: "" }]);
  });
});
