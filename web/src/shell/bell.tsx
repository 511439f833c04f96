import { useEffect } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { followInbox, unread } from "@/api/inbox";
import styles from "./navigation.module.css";

const MAX = 99;

/** Leads to the inbox, with the count of what is unread there. */
export function Bell() {
  const [location] = useLocation();
  useEffect(followInbox, []);
  const count = unread.value;
  const shown = count > MAX ? `${MAX}+` : String(count);
  return (
    <Link
      href="/inbox"
      class={styles["bell"]}
      aria-current={location.startsWith("/inbox") ? "page" : undefined}
      aria-label={count === 0 ? "Inbox" : `Inbox ${shown} unread`}
    >
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
        <path
          d="M8 2a4 4 0 0 0-4 4v2.5L2.8 11h10.4L12 8.5V6a4 4 0 0 0-4-4ZM6.5 13a1.5 1.5 0 0 0 3 0"
          fill="none"
          stroke="currentColor"
          stroke-width="1.4"
          stroke-linejoin="round"
        />
      </svg>
      <span>Inbox</span> {count > 0 && <b aria-hidden="true">{shown}</b>}
    </Link>
  );
}
