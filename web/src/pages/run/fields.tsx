/** Small parts of the page of a run. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import styles from "./run_page.module.css";

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
export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isCopied, setCopied] = useState(false);
  return (
    <Button
      kind="quiet"
      aria-label={`copy ${text}`}
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

/** Offers bytes as a file to keep. The browser never opens them as a page. */
export function saveFile(name: string, bytes: Uint8Array<ArrayBuffer>): void {
  const address = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const pad = (value: number) => String(value).padStart(2, "0");

/** A time of this machine's zone; the exact one is its title. */
export function Time({ at }: { at: string | number }) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return (
    <time dateTime={date.toISOString()} title={date.toISOString()} class={styles["time"]}>
      {isToday ? clock : `${day} ${clock}`}
    </time>
  );
}
