/** Links the cursors of charts with the same x axis: a chart shows where the pointer is in another one. */

type Listener = (x: number | null) => void;
const listeners = new Map<string, Set<Listener>>();

/** Calls `listener` with the x under the pointer of each other chart of `key`. Returns how to end it. */
export function joinCursors(key: string, listener: Listener): () => void {
  const group = listeners.get(key) ?? new Set();
  listeners.set(key, group.add(listener));
  return () => {
    group.delete(listener);
    if (group.size === 0) {
      listeners.delete(key);
    }
  };
}

/** Moves the cursors of the other charts of `key`; null hides them. */
export function moveCursors(key: string, x: number | null, own: Listener): void {
  for (const listener of listeners.get(key) ?? []) {
    if (listener !== own) {
      listener(x);
    }
  }
}
