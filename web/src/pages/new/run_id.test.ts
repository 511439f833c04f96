import { expect, it } from "vitest";
import { newRunId } from "./run_id";

it("ids of runs sort by time", () => {
  expect(newRunId(1_000_000) < newRunId(2_000_000)).toBe(true);
  expect(newRunId()).toMatch(/^[0-9a-hj-kmnp-tv-z]{20}$/);
});
