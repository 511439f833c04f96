/**
 * The colours of curves. Ten of each theme, found by a search for the largest smallest distance (OKLab) between
 * two of them as seen with normal, red-blind and green-blind eyes, with a contrast of 3 or more to the surface.
 * From the eleventh curve on, the colours return with dashes.
 */

export type ShownTheme = "light" | "dark";

export const COLOURS: Record<ShownTheme, readonly string[]> = {
  light: [
    ...["#527ee4", "#a75200", "#819b0c", "#9b3d66", "#03a1bb"],
    ...["#6116e4", "#65401e", "#ba7377", "#006f99", "#5b3293"],
  ],
  dark: [
    ...["#89acff", "#c56f2b", "#dde420", "#ce417c", "#24ebff"],
    ...["#ac5cff", "#e0a71c", "#ffcaab", "#66b695", "#687fb9"],
  ],
};

const DASHES: readonly (readonly number[])[] = [[], [6, 3], [2, 2], [8, 3, 2, 3]];

/** Returns the colour of a number: 0, 1, 2, … */
export function curveColour(number: number, theme: ShownTheme): string {
  const colours = COLOURS[theme];
  return colours[number % colours.length] ?? "gray";
}

/** Returns the lengths of the dashes and gaps of a number, empty for a full line. */
export function curveDash(number: number): readonly number[] {
  return DASHES[Math.floor(number / COLOURS.light.length) % DASHES.length] ?? [];
}
