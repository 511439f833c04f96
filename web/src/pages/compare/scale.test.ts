import { expect, it } from "vitest";
import type { Column, Value } from "./columns";
import { makeScale } from "./scale";

const column = (...values: Value[]): Column => ({ section: "Params", name: "a", key: "params.a", values });

it("places numbers by size, and leaves out what has no size", () => {
  const scale = makeScale(column(2, 4, null, Number.NaN));
  expect([2, 3, 4, null, Number.NaN].map(scale.place)).toEqual([0, 0.5, 1, null, null]);
});

it("places texts in order", () => {
  const scale = makeScale(column("mlp", "cnn", null, "rnn"));
  expect(["cnn", "mlp", "rnn", null].map(scale.place)).toEqual([0, 0.5, 1, null]);
});

it("places the only value in the middle", () => {
  expect(makeScale(column(7, 7))).toMatchObject({ ticks: [{ at: 0.5, text: "7" }] });
  expect(makeScale(column(Number.NaN)).ticks).toEqual([]);
});
