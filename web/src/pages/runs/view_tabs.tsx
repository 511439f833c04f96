import { useEffect, useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { session } from "@/api/session";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice } from "@/parts/notices";
import { DEFAULT_VIEW, fromStored, toStored, viewSearch, type View } from "./view";
import styles from "./view_tabs.module.css";

interface Tab {
  name: string;
  user: string;
  isShared: boolean;
  view: View;
}

function toTabs(views: readonly Schemas["ViewOut"][]): Tab[] {
  return views.flatMap(({ name, user, shared, view }) => {
    const parsed = fromStored(view);
    return parsed === null ? [] : [{ name, user, isShared: shared, view: parsed }];
  });
}

const isSame = (a: View, b: View): boolean => viewSearch(a).toString() === viewSearch(b).toString();

/** The saved views as tabs: one's own, and those that others share. */
export function ViewTabs({ view, onChange }: { view: View; onChange: (view: View) => void }) {
  const [tabs, setTabs] = useState<Tab[]>([]);
  const [dialog, setDialog] = useState<Tab | "new" | null>(null);
  const load = () =>
    data(api.GET("/api/v1/views", { params: { query: { limit: 1000 } } }))
      .then((page) => setTabs(toTabs(page.views)))
      .catch(() => undefined); // the table says that the server is away
  useEffect(() => void load(), []);
  const own = session.value?.user ?? "";
  const chosen = tabs.find((tab) => isSame(tab.view, view));
  const isAll = chosen === undefined && isSame(view, DEFAULT_VIEW);
  return (
    <div class={styles["tabs"]} role="group" aria-label="views">
      <button type="button" class={styles["tab"]} aria-pressed={isAll} onClick={() => onChange(DEFAULT_VIEW)}>
        All runs
      </button>
      {tabs.map((tab) => (
        <button
          key={`${tab.user}/${tab.name}`}
          type="button"
          class={styles["tab"]}
          aria-pressed={tab === chosen}
          title={
            tab.user === own
              ? tab.isShared
                ? "shared with all users"
                : "only for you"
              : `shared by ${tab.user}`
          }
          onClick={() => onChange(tab.view)}
        >
          {tab.user === own ? tab.name : `${tab.user}: ${tab.name}`}
        </button>
      ))}
      {chosen?.user === own && (
        <Button kind="quiet" aria-label={`change the view ${chosen.name}`} onClick={() => setDialog(chosen)}>
          …
        </Button>
      )}
      {chosen === undefined && !isAll && (
        <Button kind="quiet" onClick={() => setDialog("new")}>
          + Save view
        </Button>
      )}
      {dialog !== null && (
        <ViewDialog
          tab={dialog === "new" ? null : dialog}
          view={view}
          taken={tabs.filter((tab) => tab.user === own).map((tab) => tab.name)}
          onClose={() => setDialog(null)}
          onDone={() => void load()}
        />
      )}
    </div>
  );
}

function ViewDialog({
  tab,
  view,
  taken,
  onClose,
  onDone,
}: {
  tab: Tab | null; // null: a new one
  view: View;
  taken: readonly string[];
  onClose: () => void;
  onDone: () => void;
}) {
  const [name, setName] = useState(tab?.name ?? "");
  const [isShared, setShared] = useState(tab?.isShared ?? false);
  const [error, setError] = useState<unknown>(null);
  const finish = (request: Promise<unknown>) => {
    request
      .then(() => {
        onDone();
        onClose();
      })
      .catch(setError);
  };
  const path = (text: string) => ({ params: { path: { view: text } } });
  const save = async () => {
    await data(
      api.PUT("/api/v1/views/{view}", {
        ...path(name.trim()),
        body: { view: toStored(view), shared: isShared },
      }),
    );
    if (tab !== null && tab.name !== name.trim()) {
      await data(api.DELETE("/api/v1/views/{view}", path(tab.name)));
    }
  };
  const isTaken = name.trim() !== tab?.name && taken.includes(name.trim());
  return (
    <Dialog title={tab === null ? "Save this view" : `View ${tab.name}`} isOpen onClose={onClose}>
      <form
        style={{ display: "grid", gap: "var(--space-4)" }}
        onSubmit={(event) => {
          event.preventDefault();
          finish(save());
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
        <DialogButtons>
          {tab !== null && (
            <Button
              kind="danger"
              onClick={() => finish(data(api.DELETE("/api/v1/views/{view}", path(tab.name))))}
            >
              Remove
            </Button>
          )}
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={name.trim() === ""}>
            Save
          </Button>
        </DialogButtons>
      </form>
    </Dialog>
  );
}
