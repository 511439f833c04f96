import { describe, expect, it } from "vitest";
import type { ServerEvent } from "./events";
import { entryText, isInboxEvent, newEntries, type InboxEntry } from "./inbox";

const entry = (change: Partial<InboxEntry>): InboxEntry => ({
  id: "1/run/end",
  kind: "alert",
  at: "2026-01-01T00:00:01Z",
  run: "r",
  name: "alice/p/1",
  label: "",
  phase: "running",
  level: "error",
  title: "",
  text: "loss is NaN\nat step 3",
  unread: true,
  ...change,
});
const inbox = (...entries: InboxEntry[]) => ({ entries, unread: 0, read_at: null, next: null });
const event = (change: string, name: string, phase = "running"): ServerEvent =>
  ({ kind: "run", change, subject: "r", detail: "", run: { name, phase } }) as unknown as ServerEvent;

describe("the inbox", () => {
  it("changes with alerts and ends of own runs, and after a gap", () => {
    expect(isInboxEvent(event("alert", "alice/p/1"), "alice")).toBe(true);
    expect(isInboxEvent(event("phase", "alice/p/1", "failed"), "alice")).toBe(true);
    expect(isInboxEvent(event("phase", "alice/p/1"), "alice")).toBe(false);
    expect(isInboxEvent(event("values", "alice/p/1", "failed"), "alice")).toBe(false);
    expect(isInboxEvent(event("alert", "alice2/p/1"), "alice")).toBe(false);
    expect(isInboxEvent({ kind: "reset", change: "", subject: "", detail: "" }, "alice")).toBe(true);
    expect(isInboxEvent({ kind: "node", change: "changed", subject: "", detail: "" }, "alice")).toBe(false);
    const deleted = { kind: "run", change: "deleted", subject: "r", detail: "alice/p/1" } as const;
    expect(isInboxEvent(deleted, "alice")).toBe(true);
  });

  it("notifies of what is new and unread, and not of what was there at first", () => {
    const old = entry({ id: "old" });
    const read = entry({ id: "read", unread: false });
    const late = entry({ id: "late", at: "2026-01-01T00:00:02Z" });
    expect(newEntries(inbox(old), null)).toEqual([]);
    expect(newEntries(inbox(late, read, old), inbox(old))).toEqual([late]);
    // one that comes into the page because a newer one was deleted
    const before = entry({ id: "before", at: "2025-01-01T00:00:00Z" });
    expect(newEntries(inbox(old, before), inbox(late, old))).toEqual([]);
  });

  it("writes an alert without a title by its first line, and an end by its phase", () => {
    expect(entryText(entry({}))).toEqual({ title: "loss is NaN", text: "" });
    expect(entryText(entry({ title: "diverged" })).text).toContain("step 3");
    expect(entryText(entry({ kind: "end", phase: "failed", text: "exit code 1" }))).toEqual({
      title: "failed",
      text: "exit code 1",
    });
  });
});
