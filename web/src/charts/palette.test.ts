import { describe, expect, it } from "vitest";
import { COLOURS, curveColour, curveDash, type ShownTheme } from "./palette";

type Triple = [number, number, number];
const SURFACES: Record<ShownTheme, string> = { light: "#ffffff", dark: "#171c19" };

// Machado, Oliveira and Fernandes 2009, table 1, severity 1
const EYES: Record<string, number[][]> = {
  normal: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  "red-blind": [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  "green-blind": [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
};

const apply = (matrix: number[][], triple: Triple): Triple =>
  matrix.map((row) => row.reduce((sum, value, i) => sum + value * (triple[i] ?? 0), 0)) as Triple;

function linear(hex: string): Triple {
  return [1, 3, 5].map((place) => {
    const value = Number.parseInt(hex.slice(place, place + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as Triple;
}

function oklab(colour: Triple): Triple {
  const cones = apply(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    colour.map((value) => Math.min(1, Math.max(0, value))) as Triple,
  ).map(Math.cbrt) as Triple;
  return apply(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones,
  );
}

const luminance = (hex: string) => apply([[0.2126, 0.7152, 0.0722]], linear(hex))[0];

describe.each(["light", "dark"] as const)("the colours of the %s theme", (theme) => {
  it.each(Object.entries(EYES))("are distinguishable to %s eyes", (_, eye) => {
    const places = COLOURS[theme].map((hex) => oklab(apply(eye, linear(hex))));
    const distances = places.flatMap((a, i) =>
      places.slice(i + 1).map((b) => Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2])),
    );
    expect(distances).toHaveLength(45);
    expect(Math.min(...distances)).toBeGreaterThan(0.09);
  });

  it("stand out from the surface", () => {
    const surface = luminance(SURFACES[theme]);
    for (const hex of COLOURS[theme]) {
      const [low, high] = [surface, luminance(hex)].sort((a, b) => a - b) as [number, number];
      expect((high + 0.05) / (low + 0.05), hex).toBeGreaterThanOrEqual(3);
    }
  });
});

it("returns with dashes after ten curves", () => {
  expect(curveColour(10, "light")).toBe(curveColour(0, "light"));
  expect(curveDash(9)).toEqual([]);
  expect(curveDash(10)).not.toEqual([]);
});
