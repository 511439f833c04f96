import { useRef } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { logOut, session } from "@/api/session";
import { Button } from "@/parts/button";
import { useCurrentInSight } from "@/parts/current_in_sight";
import { Bell } from "./bell";
import { PAGES } from "./pages";
import styles from "./navigation.module.css";
import icon from "./icon.svg";
import { isPaletteOpen } from "./keyboard";
import { nextTheme, theme, type Theme } from "./theme";

const GLYPHS: Record<Theme, string> = { system: "◐", light: "☀", dark: "☾" };

/** The column of pages on the left; on a phone, a row above. */
export function Navigation() {
  const [location] = useLocation();
  const row = useRef<HTMLElement>(null);
  useCurrentInSight(row, location);
  return (
    <nav ref={row} class={styles["navigation"]} aria-label="pages">
      <Link href="/runs" class={styles["brand"]} aria-label="Hopyard">
        <img src={icon} alt="" width="22" height="22" />
        <span>Hopyard</span>
      </Link>
      <button type="button" class={styles["search"]} onClick={() => (isPaletteOpen.value = true)}>
        <span>Search</span>
        <kbd>Ctrl K</kbd>
      </button>
      <Bell />
      <ul>
        {PAGES.map((page) => (
          <li key={page.path}>
            <Link href={page.path} aria-current={location.startsWith(page.path) ? "page" : undefined}>
              {page.title}
            </Link>
          </li>
        ))}
      </ul>
      <footer>
        <span class={styles["user"]} title={session.value?.server}>
          {session.value?.user}
        </span>
        <Button kind="quiet" onClick={nextTheme} aria-label="theme" title={`theme: ${theme.value}`}>
          {GLYPHS[theme.value]}
        </Button>
        <Button kind="quiet" onClick={() => void logOut().catch(() => undefined)}>
          Log out
        </Button>
      </footer>
    </nav>
  );
}
