import { type RefObject } from "preact";
import { useLayoutEffect } from "preact/hooks";

const MARGIN = 48; // pixels: what loads later in the row moves the link by less

/** Scrolls a row of links sideways, so that the current one is in sight. `current`: what decides which it is. */
export function useCurrentInSight(row: RefObject<HTMLElement>, current: string): void {
  useLayoutEffect(() => {
    const box = row.current;
    const link = box?.querySelector<HTMLElement>("[aria-current]");
    if (box && link) {
      const [outer, inner] = [box.getBoundingClientRect(), link.getBoundingClientRect()];
      if (inner.left < outer.left || inner.right > outer.right - MARGIN) {
        box.scrollLeft += inner.left + inner.width / 2 - (outer.left + outer.width / 2);
      }
    }
  }, [current]);
}
