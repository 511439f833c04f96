import { expect, it } from "vitest";
import { naturalOrder } from "./natural_order";

it("orders numbers in texts by their size", () => {
  expect(["b10", "a", "b2", "b1"].sort(naturalOrder)).toEqual(["a", "b1", "b2", "b10"]);
});
