/** Tabs of a page, as links: the chosen one is in the address. */
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Link } from "wouter-preact";
import { useCurrentInSight } from "./current_in_sight";
import styles from "./tab_links.module.css";

export interface TabLink {
  key: string;
  title: ComponentChildren;
  href: string;
}

/** `label`: what the tabs are parts of, for screen readers. `current`: the key of the shown tab. */
export function TabLinks({
  label,
  tabs,
  current,
}: {
  label: string;
  tabs: readonly TabLink[];
  current: string;
}) {
  const row = useRef<HTMLElement>(null);
  useCurrentInSight(row, current);
  return (
    <nav ref={row} class={styles["tabs"]} aria-label={label}>
      {tabs.map((tab) => (
        <Link key={tab.key} href={tab.href} aria-current={tab.key === current ? "page" : undefined}>
          {tab.title}
        </Link>
      ))}
    </nav>
  );
}
