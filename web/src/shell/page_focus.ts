/** Where the focus goes when what had it is gone: to the page, so that the keys scroll and Tab continues there. */
import { useEffect, useRef } from "preact/hooks";

/** Moves the focus to the page beside the navigation. */
export function focusPage(): void {
  document.querySelector("main")?.focus({ preventScroll: true });
}

function focusPageIfLost(): void {
  if (document.activeElement === null || document.activeElement === document.body) {
    focusPage();
  }
}

/** Gives the page the focus when the row, the link or the button that had it is gone: after a change of `location`,
 *  or with the run that it stops. */
export function usePageFocus(location: string): void {
  const before = useRef(location);
  useEffect(() => {
    const isFirst = before.current === location; // the browser has just begun at the top of the page
    before.current = location;
    const timer = isFirst ? 0 : window.setTimeout(focusPageIfLost);
    return () => window.clearTimeout(timer);
  }, [location]);
  useEffect(() => {
    let timer = 0;
    const check = ({ target }: FocusEvent) => {
      window.clearTimeout(timer);
      timer = window.setTimeout(() => {
        if (target instanceof Element && !target.isConnected) {
          focusPageIfLost();
        }
      });
    };
    document.addEventListener("focusout", check);
    return () => {
      document.removeEventListener("focusout", check);
      window.clearTimeout(timer);
    };
  }, []);
}
