/** Arrow keys that go through the steps of a page, wherever the focus is, except where they have a use of their own. */
import { useEffect, useRef } from "preact/hooks";

const OWN_ARROWS =
  "input, select, textarea, [contenteditable], [role=menu], [role=slider], [role=group][tabindex], audio, video";

/** Calls back with -1 for the key `back` and 1 for `forward`. */
export function useStepKeys(back: string, forward: string, onStep: (by: -1 | 1) => void): void {
  const latest = useRef(onStep);
  latest.current = onStep;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const by = event.key === back ? -1 : event.key === forward ? 1 : null;
      const isOwn = event.target instanceof Element && event.target.closest(OWN_ARROWS) !== null;
      if (by !== null && !isOwn && !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey) {
        event.preventDefault();
        latest.current(by);
      }
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [back, forward]);
}
