import { useEffect, useRef } from "preact/hooks";
import { shownTheme } from "@/charts/shown_theme";
import type { TerminalSession } from "./terminal_session";
import styles from "./console.module.css";

/** Shows a terminal, which outlives this view. */
export function TerminalView({ session }: { session: TerminalSession }) {
  const place = useRef<HTMLDivElement>(null);
  const after = useRef<HTMLSpanElement>(null);
  const theme = shownTheme.value;
  useEffect(() => {
    if (place.current) {
      session.show(place.current);
    }
    return () => session.hide();
  }, [session, theme]);
  return (
    <>
      <div
        ref={place}
        class={styles["terminal"]}
        role="group"
        aria-label="terminal"
        onKeyDown={(event) => {
          if (event.key === "F6") {
            event.preventDefault();
            after.current?.focus();
          }
        }}
      />
      <span ref={after} tabIndex={-1} />
    </>
  );
}
