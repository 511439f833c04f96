/** Small parts of the page of a run. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import styles from "./run_page.module.css";

export { saveFile } from "@/parts/save_file";
export { Time } from "@/parts/time";

/** A labelled value. */
export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class={styles["field"]}>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** A part of a tab with a heading. */
export function Section({
  title,
  aside,
  children,
}: {
  title: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <section class={styles["section"]}>
      <header>
        <h2>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

/** Copies a text. Tells that it did. */
export function CopyButton({
  text,
  label = "Copy",
  name = `copy ${text}`,
}: {
  text: string;
  label?: string;
  name?: string; // for screen readers
}) {
  const [isCopied, setCopied] = useState(false);
  return (
    <Button
      kind="quiet"
      aria-label={name}
      onClick={() => {
        void copyText(text).then(() => {
          setCopied(true);
          setTimeout(() => setCopied(false), 1500);
        });
      }}
    >
      {isCopied ? "Copied" : label}
    </Button>
  );
}

/** The clipboard is there on https and on this machine only: elsewhere a selected text area is copied. */
async function copyText(text: string): Promise<void> {
  if (window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- nothing else copies on plain http
  document.execCommand("copy");
  area.remove();
}
