/** What happened to a run, in words: kinds of events and of commands. */
const WORDS: Readonly<Record<string, string>> = {
  promised: "start promised",
  breached: "promise broken",
  preempted: "preemption requested",
  damaged: "checkpoint damaged",
  "time-limit": "time limit near",
  "unread-params": "parameters not read",
  resumed: "resumed from its own checkpoint",
  media: "media not read",
  "stop-trial": "trial stopped",
  changed: "changed",
  evaluation: "evaluated by another run",
  restarted: "process restarted",
  alert: "alert",
  notified: "notification",
  console: "console opened",
  pause: "paused",
  resume: "resumed",
  set: "parameters set",
};

/** Returns the words for a kind; a kind of a newer server without its hyphens. */
export function eventWords(kind: string): string {
  return WORDS[kind] ?? kind.replaceAll("-", " ");
}
