/** The text of a run that users change: its name, note and tags. A change names what it replaces. */
import { api, data, type Schemas } from "@/api/client";
import { saveOver } from "@/parts/conflict";

type Run = Schemas["RunOut"];

export interface RunText {
  label: string;
  note: string;
  tags: Readonly<Record<string, string>>;
}

export function textOf(run: Pick<Run, "note"> & { spec: Pick<Run["spec"], "label" | "tags"> }): RunText {
  return { label: run.spec.label ?? "", note: run.note, tags: run.spec.tags ?? {} };
}

/** What the user changed, and no more: a change of another user to the rest stays. A tag is null where it goes. */
export interface TextChange {
  label?: string;
  note?: string;
  tags: Readonly<Record<string, string | null>>;
}

/** Returns what differs between the text as it was read and as it was typed. */
export function changeOf(read: RunText, typed: RunText): TextChange {
  const tags: Record<string, string | null> = {};
  for (const key of Object.keys(read.tags)) {
    if (!Object.hasOwn(typed.tags, key)) {
      tags[key] = null;
    }
  }
  for (const [key, value] of Object.entries(typed.tags)) {
    if (tagOf(read, key) !== value) {
      tags[key] = value;
    }
  }
  return {
    ...(typed.label !== read.label && { label: typed.label }),
    ...(typed.note !== read.note && { note: typed.note }),
    tags,
  };
}

/** Returns the request for a change. The server refuses it if the run no longer has the values of `stored`. */
export function requestOf(change: TextChange, stored: RunText): Schemas["UpdateIn"] {
  const entries = Object.entries(change.tags);
  return {
    ...(change.label !== undefined && { label: change.label }),
    ...(change.note !== undefined && { note: change.note }),
    tags: Object.fromEntries(entries.flatMap(([key, value]) => (value === null ? [] : [[key, value]]))),
    untag: entries.flatMap(([key, value]) => (value === null && tagOf(stored, key) !== null ? [key] : [])),
    replaces: {
      ...(change.label !== undefined && { label: stored.label }),
      ...(change.note !== undefined && { note: stored.note }),
      tags: Object.fromEntries(entries.map(([key]) => [key, tagOf(stored, key)])),
    },
  };
}

/** Returns whether one of the values that the change replaces has become another one. */
export function isOtherText(change: TextChange, read: RunText, stored: RunText): boolean {
  return (
    (change.label !== undefined && stored.label !== read.label) ||
    (change.note !== undefined && stored.note !== read.note) ||
    Object.keys(change.tags).some((key) => tagOf(stored, key) !== tagOf(read, key))
  );
}

/** Saves a change. Returns null, or the run as another user has changed it meanwhile. Throws ApiError. */
export async function saveText(
  id: string,
  change: TextChange,
  read: RunText,
): Promise<{ theirs: Run } | null> {
  const params = { path: { id } };
  return saveOver(
    () => data(api.PATCH("/api/v1/runs/{id}", { params, body: requestOf(change, read) })),
    () => data(api.GET("/api/v1/runs/{id}", { params })),
    (stored) => isOtherText(change, read, textOf(stored)),
  );
}

function tagOf(text: RunText, key: string): string | null {
  return Object.hasOwn(text.tags, key) ? (text.tags[key] ?? null) : null;
}
