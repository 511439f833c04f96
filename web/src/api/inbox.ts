/** The inbox of the user: alerts and ends of the user's runs, the count of what is unread, and the browser's own
 *  notifications. All parts of the page share one reading of it. */
import { signal } from "@preact/signals";
import { api, data, type Schemas } from "./client";
import { followEvents, isGap, isStreaming, type ServerEvent } from "./events";
import { session } from "./session";

export type InboxEntry = Schemas["InboxEntryOut"];

export const PAGE = 50;
const SETTLE_MS = 1000; // the last alerts of a run and its end become one reading
const POLL_MS = 15_000;
const ALLOWED = "hopyard.notifications";

/** How many entries are unread; `99+` is shown for more. */
export const unread = signal(0);
/** The newest entries; null before the first reading. */
export const newest = signal<Schemas["InboxOut"] | null>(null);

export function readInbox(before: string | null = null): Promise<Schemas["InboxOut"]> {
  return data(
    api.GET("/api/v1/inbox", { params: { query: { limit: PAGE, ...(before === null ? {} : { before }) } } }),
  );
}

/** Reads the newest entries. Errors are left to the next reading: the page says elsewhere that the server is away. */
export async function refreshInbox(): Promise<void> {
  try {
    const found = await readInbox();
    notifyOf(found, newest.value);
    [newest.value, unread.value] = [found, found.unread];
  } catch {
    // read again after the next event or interval
  }
}

/** Marks all entries until one as read. Throws ApiError. */
export async function markRead(until: InboxEntry): Promise<void> {
  await data(api.PUT("/api/v1/inbox/read", { body: { until: until.at } }));
  await refreshInbox();
}

/** Whether an event may add an entry to the user's inbox, or remove some. */
export function isInboxEvent(event: ServerEvent, user: string): boolean {
  if (event.kind !== "run" && event.kind !== "study") {
    return isGap(event);
  }
  if (event.change === "deleted") {
    return event.detail.startsWith(`${user}/`);
  }
  return (
    event.run?.name.startsWith(`${user}/`) === true &&
    (event.change === "alert" ||
      (event.change === "phase" && ["succeeded", "failed", "cancelled"].includes(event.run.phase)))
  );
}

/** Keeps the inbox up to date until the returned function is called. */
export function followInbox(): () => void {
  let settle = 0;
  const soon = () => {
    window.clearTimeout(settle);
    settle = window.setTimeout(() => void refreshInbox(), SETTLE_MS);
  };
  void refreshInbox();
  const stop = followEvents((event) => {
    if (isInboxEvent(event, session.value?.user ?? "")) {
      soon();
    }
  });
  const poll = window.setInterval(() => {
    if (!isStreaming.value && !document.hidden) {
      void refreshInbox();
    }
  }, POLL_MS);
  // marks that another browser made
  const onVisibility = () => {
    if (!document.hidden) {
      soon();
    }
  };
  document.addEventListener("visibilitychange", onVisibility);
  return () => {
    stop();
    window.clearTimeout(settle);
    window.clearInterval(poll);
    document.removeEventListener("visibilitychange", onVisibility);
    newest.value = null;
  };
}

/** How an entry is written in one line: what happened, and the details. */
export function entryText(entry: InboxEntry): { title: string; text: string } {
  return entry.kind === "alert"
    ? { title: entry.title || entry.text.split("\n")[0] || "alert", text: entry.title ? entry.text : "" }
    : { title: entry.phase, text: entry.text };
}

/** Whether this browser shows notifications of its own: `unsupported` also without TLS on another host. */
export type Permission = "unsupported" | "denied" | "off" | "on";

export function notificationState(): Permission {
  if (typeof Notification === "undefined" || !window.isSecureContext) {
    return "unsupported";
  }
  if (Notification.permission === "denied") {
    return "denied";
  }
  return Notification.permission === "granted" && localStorage.getItem(ALLOWED) === "on" ? "on" : "off";
}

/** Switches notifications of this browser. On: the browser asks the user first. */
export async function allowNotifications(isOn: boolean): Promise<void> {
  if (isOn && (await Notification.requestPermission()) !== "granted") {
    return;
  }
  localStorage.setItem(ALLOWED, isOn ? "on" : "off");
}

/** The entries of a reading that are unread and newer than all of the reading before. */
export function newEntries(found: Schemas["InboxOut"], before: Schemas["InboxOut"] | null): InboxEntry[] {
  if (before === null) {
    return [];
  }
  const known = new Set(before.entries.map((entry) => entry.id));
  const last = Date.parse(before.entries[0]?.at ?? "1970-01-01");
  return found.entries.filter(
    (entry) => entry.unread && !known.has(entry.id) && Date.parse(entry.at) >= last,
  );
}

const MAX_SHOWN = 3; // at once

function notifyOf(found: Schemas["InboxOut"], before: Schemas["InboxOut"] | null): void {
  if (notificationState() !== "on" || !document.hidden) {
    return;
  }
  for (const entry of newEntries(found, before).slice(0, MAX_SHOWN)) {
    const { title, text } = entryText(entry);
    try {
      // one tag: several tabs show one notification
      const shown = new Notification(`${entry.label || entry.name}: ${title}`, { body: text, tag: entry.id });
      shown.onclick = () => {
        window.focus();
        window.location.assign(`/runs/${entry.run}`);
      };
    } catch {
      // a browser for phones shows none from a page
    }
  }
}
