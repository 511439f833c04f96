/** What stands in place of content: nothing there yet, an error with its hints, or something on its way. */
import type { ComponentChildren } from "preact";
import { isAway } from "@/api/answers";
import { ApiError } from "@/api/client";
import styles from "./notices.module.css";

const AWAY = "The server does not answer. What you see may be old; the page continues once it does.";

/** An empty page or part. `command`: what to type to fill it. */
export function Empty({
  title,
  command,
  children,
}: {
  title: string;
  command?: string;
  children?: ComponentChildren;
}) {
  return (
    <section class={styles["notice"]}>
      <h2>{title}</h2>
      {children}
      {command !== undefined && <pre class={styles["command"]}>{command}</pre>}
    </section>
  );
}

/** An error in the server's words, with its hints. */
export function ErrorNotice({ error }: { error: unknown }) {
  const hints = error instanceof ApiError ? error.hints : [];
  return (
    <section class={`${styles["notice"]} ${styles["error"]}`} role="alert">
      <h2>{error instanceof Error ? error.message : String(error)}</h2>
      {hints.map((hint) => (
        <p key={hint}>{hint}</p>
      ))}
    </section>
  );
}

/** Holds the place of content that is on its way, so that nothing jumps. `rows`: as many as are expected. */
export function Loading({ rows = 8 }: { rows?: number }) {
  return (
    <div class={styles["loading"]} role="status" aria-label="loading">
      {Array.from({ length: rows }, (_, row) => (
        <div key={row} class={styles["bar"]} />
      ))}
    </div>
  );
}

/** Above data that is old, because the newest read has failed; nothing without an error. */
export function StaleNotice({ error }: { error: unknown }) {
  const isRefusal = error instanceof ApiError && error.status !== 0;
  if (error === null || (isAway.value && !isRefusal)) {
    return null; // `AwayNotice` says it for the whole page
  }
  return (
    <p class={styles["stale"]} role="alert">
      {isRefusal ? error.message : AWAY}
    </p>
  );
}

/** Above each page while the server does not answer. */
export function AwayNotice() {
  return isAway.value ? (
    <p class={`${styles["stale"]} ${styles["away"]}`} role="alert">
      {AWAY}
    </p>
  ) : null;
}
