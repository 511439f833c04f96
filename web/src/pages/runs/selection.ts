/** Which runs are selected, and what a click or a key does to that. */

export interface Selection {
  ids: ReadonlySet<string>;
  anchor: string | null; // the other end of a range
}

export const NOTHING: Selection = { ids: new Set(), anchor: null };

/** Selects a run, or no longer. */
export function toggle({ ids }: Selection, id: string): Selection {
  const next = new Set(ids);
  if (!next.delete(id)) {
    next.add(id);
  }
  return { ids: next, anchor: id };
}

/** Selects all runs between the anchor and this one, in the order of the table. */
export function extend(selection: Selection, order: readonly string[], id: string): Selection {
  const from = selection.anchor === null ? -1 : order.indexOf(selection.anchor);
  const to = order.indexOf(id);
  if (from < 0 || to < 0) {
    return toggle({ ...selection, ids: new Set([...selection.ids].filter((other) => other !== id)) }, id);
  }
  const range = order.slice(Math.min(from, to), Math.max(from, to) + 1);
  return { ids: new Set([...selection.ids, ...range]), anchor: selection.anchor };
}

/** Returns the selection without runs that are gone. */
export function keep(selection: Selection, order: readonly string[]): Selection {
  const known = new Set(order);
  const ids = [...selection.ids].filter((id) => known.has(id));
  return ids.length === selection.ids.size ? selection : { ...selection, ids: new Set(ids) };
}
