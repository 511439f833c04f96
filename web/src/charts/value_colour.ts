/** The colours of values, from the lowest to the highest. */
import type { ShownTheme } from "./palette";

type Rgb = readonly [number, number, number];

/** In each theme lightness rises or falls all the way, so that the order is seen without colours as well. */
const STOPS: Record<ShownTheme, readonly Rgb[]> = {
  light: [
    [36, 44, 128],
    [101, 43, 150],
    [170, 45, 126],
    [212, 82, 74],
    [205, 128, 22],
  ],
  dark: [
    [104, 122, 255],
    [170, 110, 240],
    [232, 112, 176],
    [250, 154, 106],
    [247, 222, 106],
  ],
};

/** Returns the colour of a place from 0 to 1. */
export function valueColour(at: number, theme: ShownTheme): string {
  const stops = STOPS[theme];
  const place = Math.min(1, Math.max(0, at)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const [low, high] = [stops[index] as Rgb, stops[index + 1] as Rgb];
  const mixed = low.map((part, channel) =>
    Math.round(part + ((high[channel] ?? part) - part) * (place - index)),
  );
  return `rgb(${mixed.join(", ")})`;
}

/** Returns the background of a legend of values, as CSS. */
export function valueGradient(theme: ShownTheme): string {
  return `linear-gradient(to right, ${STOPS[theme].map((stop) => `rgb(${stop.join(", ")})`).join(", ")})`;
}
