/** Saves, renames, shares and removes a view. */
import { useState } from "preact/hooks";
import { api, ApiError, data, type Schemas } from "@/api/client";
import { Button } from "@/parts/button";
import { ConflictNotice, saveOver } from "@/parts/conflict";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice } from "@/parts/notices";
import styles from "./saved_views.module.css";

type View = Schemas["ViewOut"];
type Change = "save" | "remove";

const path = (view: string) => ({ path: { view } });

/** Returns a view of the user; null if there is none of that name. */
async function readOwn(name: string): Promise<View | null> {
  return nullIfGone(data(api.GET("/api/v1/views/{view}", { params: path(name) })));
}

async function remove(name: string, revision: number): Promise<void> {
  await nullIfGone(
    data(api.DELETE("/api/v1/views/{view}", { params: { ...path(name), query: { revision } } })),
  );
}

async function nullIfGone<T>(request: Promise<T>): Promise<T | null> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) {
      return null;
    }
    throw error;
  }
}

/**
 * @param tab the view to change; null: a new one
 * @param own the user's views when the dialog is opened: a change of another browser since is a conflict
 * @param onLoad shows what another browser stored
 */
export function ViewDialog({
  tab,
  page,
  search,
  own,
  onClose,
  onDone,
  onLoad,
}: {
  tab: { name: string; isShared: boolean; revision: number } | null;
  page: string;
  search: string;
  own: readonly View[];
  onClose: () => void;
  onDone: () => void;
  onLoad: (view: View) => void;
}) {
  const [name, setName] = useState(tab?.name ?? "");
  const [isShared, setShared] = useState(tab?.isShared ?? false);
  const [error, setError] = useState<unknown>(null);
  const [conflict, setConflict] = useState<{ change: Change; theirs: View | null } | null>(null);
  const [known] = useState(own); // the page reads the views again while this is open
  const target = name.trim();
  const revisionOf = (view: string) => known.find((each) => each.name === view)?.revision ?? 0;
  const finish = () => {
    onDone();
    onClose();
  };
  const attempt = (change: Change, base: number) => {
    setError(null);
    setConflict(null);
    const view = change === "save" ? target : (tab?.name ?? "");
    saveOver(
      async () => {
        if (change === "remove") {
          await remove(view, base);
          return;
        }
        await data(
          api.PUT("/api/v1/views/{view}", {
            params: path(view),
            body: {
              // the server takes any JSON object; the generated type says that it has no fields
              view: { page, search } as unknown as Record<string, never>,
              shared: isShared,
              revision: base,
            },
          }),
        );
      },
      () => readOwn(view),
      (theirs) => (theirs?.revision ?? 0) !== base,
    )
      .then(async (other) => {
        if (other !== null) {
          setConflict({ change, theirs: other.theirs });
          return;
        }
        if (change === "save" && tab !== null && tab.name !== target) {
          await remove(tab.name, tab.revision); // refused if it has changed: then both stay
        }
        finish();
      })
      .catch((failure: unknown) => {
        setError(failure);
        onDone();
      });
  };
  const isTaken = target !== tab?.name && known.some((view) => view.name === target);
  const theirs = conflict?.theirs ?? null;
  return (
    <Dialog title={tab === null ? "Save this view" : `View ${tab.name}`} isOpen onClose={onClose}>
      <form
        style={{ display: "grid", gap: "var(--space-4)" }}
        onSubmit={(event) => {
          event.preventDefault();
          attempt("save", tab?.name === target ? tab.revision : revisionOf(target));
        }}
      >
        <label class={fieldStyles["label"]}>
          Name of the view
          <input
            class={fieldStyles["input"]}
            placeholder="best-of-week"
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </label>
        <label class={styles["check"]}>
          <input
            type="checkbox"
            checked={isShared}
            onChange={(event) => setShared(event.currentTarget.checked)}
          />
          Shared: every user of the server sees it
        </label>
        {isTaken && <p>This replaces your view of that name.</p>}
        {error !== null && <ErrorNotice error={error} />}
        {conflict !== null && (
          <ConflictNotice
            text={`Another browser ${theirs === null ? "removed" : "changed"} this view meanwhile.`}
            load={theirs === null ? "Drop mine" : "Load theirs"}
            keep={conflict.change === "remove" ? "Remove it anyway" : "Keep mine"}
            onLoad={() => {
              if (theirs !== null) {
                onLoad(theirs);
              }
              finish();
            }}
            onKeep={() => attempt(conflict.change, theirs?.revision ?? 0)}
          />
        )}
        <DialogButtons>
          {tab !== null && (
            <Button kind="danger" onClick={() => attempt("remove", tab.revision)}>
              Remove
            </Button>
          )}
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={target === ""}>
            Save
          </Button>
        </DialogButtons>
      </form>
    </Dialog>
  );
}
