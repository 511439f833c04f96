/** Panels of curves that a user has chosen: pinned metrics, and one metric over another. */

/** A panel of one metric over another. */
export interface MetricPair {
  y: string;
  x: string;
}

const PAIR_SIGN = " vs ";
export const pairName = ({ x, y }: MetricPair): string => `${y}${PAIR_SIGN}${x}`;

/** Returns the pairs with these names, without what is none. */
export function toPairs(names: readonly string[]): MetricPair[] {
  return [...new Set(names)].flatMap((name) => {
    const place = name.indexOf(PAIR_SIGN);
    return place > 0 ? [{ y: name.slice(0, place), x: name.slice(place + PAIR_SIGN.length) }] : [];
  });
}

/** Returns the names in the order of panels: the pinned ones first, then those of the most runs. */
export function orderPanels(
  counts: ReadonlyMap<string, number>,
  pins: readonly string[],
  matches: (name: string) => boolean,
): string[] {
  const others = [...counts.keys()].filter((name) => !pins.includes(name));
  others.sort((a, b) => (counts.get(b) ?? 0) - (counts.get(a) ?? 0) || (a < b ? -1 : 1));
  return [...pins.filter((name) => counts.has(name)), ...others].filter(matches);
}

/** Returns the names with one of them moved by a place. */
export function move(names: readonly string[], name: string, by: -1 | 1): string[] {
  const moved = [...names];
  const place = moved.indexOf(name);
  const other = moved[place + by];
  if (place >= 0 && other !== undefined) {
    [moved[place], moved[place + by]] = [other, name];
  }
  return moved;
}

/** Returns the names after one was dropped on another: it takes that place, or the last one. */
export function drop(names: readonly string[], name: string, target: string): string[] {
  const place = names.indexOf(target);
  const others = names.filter((each) => each !== name);
  return place < 0 ? [...others, name] : others.toSpliced(place, 0, name);
}
