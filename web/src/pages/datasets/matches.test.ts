import { describe, expect, it } from "vitest";
import type { Dataset } from "@/api/datasets";
import { matches } from "./matches";

const MNIST: Dataset = {
  name: "mnist",
  created_at: "2026-11-01T00:00:00Z",
  versions: 1,
  metric: "val_acc",
  higher_is_better: null,
  runs: 0,
  newest: {
    dataset: "mnist",
    number: 1,
    manifest: "0".repeat(64),
    size_bytes: 1,
    files: 1,
    created_at: "2026-11-01T00:00:00Z",
    created_by: "alice",
    message: "Cleaned labels",
    damaged: "",
    derived_from: "",
  },
};

describe("filter of datasets", () => {
  it("finds all words in name, metric, user and message", () => {
    expect(matches(MNIST, "")).toBe(true);
    expect(matches(MNIST, " ALICE  clean ")).toBe(true);
    expect(matches(MNIST, "val_acc")).toBe(true);
    expect(matches(MNIST, "alice cifar")).toBe(false);
    expect(matches({ ...MNIST, newest: null }, "mni")).toBe(true);
  });
});
