import { expect, test } from "vitest";
import {
  type AxisValue,
  brushedLines,
  brushOf,
  brushPlaces,
  type ParallelAxis,
  moveTo,
  placeAxis,
} from "./parallel_axes";

const axis = (key: string, values: AxisValue[]): ParallelAxis => ({ key, name: key, values });

test("numbers are placed by size, texts by name, and what is no number nowhere", () => {
  expect(placeAxis(axis("lr", [1, 3, 2, null, Number.NaN, Infinity])).places).toEqual([
    0,
    1,
    0.5,
    null,
    null,
    null,
  ]);
  const texts = placeAxis(axis("optimizer", ["sgd", "adam", null, "sgd"]));
  expect(texts.kind).toBe("category");
  expect(texts.texts).toEqual(["adam", "sgd"]);
  expect(texts.places).toEqual([0.75, 0.25, null, 0.75]);
});

test("a logarithmic axis needs values above zero", () => {
  const placed = placeAxis(axis("lr", [0.001, 0.01, 0.1]), true);
  expect(placed.kind).toBe("log");
  expect(placed.places[1]).toBeCloseTo(0.5);
  const zero = placeAxis(axis("decay", [0, 1]), true);
  expect([zero.kind, zero.canBeLog]).toEqual(["linear", false]);
});

test("an axis with one value has it in the middle", () => {
  expect(placeAxis(axis("epochs", [5, 5])).places).toEqual([0.5, 0.5]);
  expect(placeAxis(axis("zero", [0])).places).toEqual([0.5]);
  expect(placeAxis(axis("lr", [0.1]), true).places[0]).toBeCloseTo(0.5);
});

test("a brush selects the values that it covers and is drawn where it was", () => {
  const lr = placeAxis(axis("lr", [0.001, 0.01, 0.1]), true);
  const brush = brushOf(lr, 0.8, 0.25);
  expect(brush).toEqual({ low: 0.003162, high: 0.03981 });
  const [low, high] = (brush && brushPlaces(lr, brush)) ?? [];
  expect(low).toBeCloseTo(0.25, 3);
  expect(high).toBeCloseTo(0.8, 3);
  expect(brushOf(lr, -0.1, 1.1)).toEqual({ low: 0.001, high: 0.1 });
  const optimizer = placeAxis(axis("optimizer", ["sgd", "adam", "lamb"]));
  expect(brushOf(optimizer, 0.1, 0.6)).toEqual({ texts: ["adam", "lamb"] });
  expect(brushOf(optimizer, 0.2, 0.4)).toBeNull();
  expect(brushPlaces(optimizer, { texts: ["gone"] })).toBeNull();
  expect(brushPlaces(lr, { low: 5, high: 6 })).toBeNull();
});

test("lines are selected by all brushes, those of absent axes left out", () => {
  const axes = [axis("lr", [0.1, 0.2, null]), axis("optimizer", ["sgd", "adam", "sgd"])];
  const brushes = new Map([
    ["lr", { low: 0.1, high: 0.3 }],
    ["optimizer", { texts: ["sgd"] }],
    ["gone", { texts: [] }],
  ]);
  expect(brushedLines(axes, brushes, 3)).toEqual([0]);
  expect(brushedLines(axes, new Map(), 3)).toEqual([0, 1, 2]);
});

test("an axis moves to a place", () => {
  expect(moveTo(["a", "b", "c"], "a", 2)).toEqual(["b", "c", "a"]);
  expect(moveTo(["a", "b", "c"], "c", -5)).toEqual(["c", "a", "b"]);
  expect(moveTo(["a"], "z", 0)).toEqual(["a"]);
});
