/** What the curves of a run look like, as it stands in the address and in a saved view. */

const SINGLE = ["x", "smoothing", "log", "metrics"] as const;
const SEVERAL = ["pin", "panel"] as const;
const USUAL: Partial<Record<(typeof SINGLE)[number], string>> = { x: "step", smoothing: "0" };

/** Returns the part of an address that is the layout, `""` for the usual one. */
export function layoutOf(search: URLSearchParams): string {
  const layout = new URLSearchParams();
  for (const name of SINGLE) {
    const value = search.get(name) ?? "";
    if (value !== "" && value !== USUAL[name]) {
      layout.set(name, value);
    }
  }
  for (const name of SEVERAL) {
    new Set(search.getAll(name)).forEach((value) => layout.append(name, value));
  }
  return layout.toString();
}

/** Returns the address with another layout. */
export function applyLayout(search: URLSearchParams, layout: string): URLSearchParams {
  const next = new URLSearchParams(search);
  [...SINGLE, ...SEVERAL].forEach((name) => next.delete(name));
  new URLSearchParams(layout).forEach((value, name) => next.append(name, value));
  return next;
}
