import { expect, it } from "vitest";
import { fieldNames, likelyQuery } from "./filter_hint";

const NAMES = ["phase", "user", "params.lr", "metrics.val_acc"];

it("finds the query behind words that begin with a field", () => {
  expect(likelyQuery("status failed", NAMES)).toBe("phase = 'failed'");
  expect(likelyQuery("user: alice", NAMES)).toBe("user = 'alice'");
  expect(likelyQuery("lr 0.1", NAMES)).toBe("params.lr = 0.1");
  expect(likelyQuery("my best run", NAMES)).toBeNull();
  expect(likelyQuery("phase = failed", NAMES)).toBeNull();
  expect(likelyQuery("phase", NAMES)).toBeNull();
});

it("lists fields of all runs before those of a few", () => {
  expect(fieldNames(["params.lr"]).slice(0, 2)).toEqual(["phase", "name"]);
  expect(fieldNames(["params.lr"])).toContain("params.lr");
});
