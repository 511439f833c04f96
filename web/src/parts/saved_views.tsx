/** Views that a user keeps: what a page shows, under a name, private or shared with all users of the server. */
import { useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { session } from "@/api/session";
import { whyNoSubmit } from "@/api/rights";
import { Button } from "@/parts/button";
import { ViewDialog } from "@/parts/view_dialog";
import styles from "./saved_views.module.css";

const POLL_MS = 5000; // views of other users and browsers come without an event
const NONE: Schemas["ViewOut"][] = [];

interface Tab {
  name: string;
  user: string;
  isShared: boolean;
  revision: number;
  search: string;
}

/** Returns the views of a page, which another version of the page may have written. */
export function viewsOf(
  page: string,
  views: readonly Pick<Schemas["ViewOut"], "name" | "user" | "shared" | "revision" | "view">[],
  normalise: (search: string) => string,
): Tab[] {
  return views.flatMap(({ name, user, shared, revision, view }) => {
    const { page: of, search } = view as Record<string, unknown>;
    return of === page && typeof search === "string"
      ? [{ name, user, isShared: shared, revision, search: normalise(search) }]
      : [];
  });
}

/**
 * The saved views of a page as tabs: one's own, and those that others share.
 *
 * @param search what the page shows, as it stands in the address; `""`: as usual
 * @param normalise returns such an address in the form of `search`
 */
export function SavedViews({
  page,
  search,
  usual,
  normalise,
  onChange,
}: {
  page: string;
  search: string;
  /** The name of what is shown as usual. */
  usual: string;
  normalise: (search: string) => string;
  onChange: (search: string) => void;
}) {
  const [dialog, setDialog] = useState<Tab | "new" | null>(null);
  // the page says where the server is away
  const { data: found, reload } = usePolled(
    "views",
    () => data(api.GET("/api/v1/views", { params: { query: { limit: 1000 } } })),
    () => POLL_MS,
  );
  const views = found?.views ?? NONE;
  const tabs = viewsOf(page, views, normalise);
  const own = session.value?.user ?? "";
  const chosen = tabs.find((tab) => tab.search === search);
  const isAll = chosen === undefined && search === "";
  const refusal = whyNoSubmit();
  const change = { disabled: refusal !== "", title: refusal };
  return (
    <div class={styles["tabs"]} role="group" aria-label="views">
      <button type="button" class={styles["tab"]} aria-pressed={isAll} onClick={() => onChange("")}>
        {usual}
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
          onClick={() => onChange(tab.search)}
        >
          {tab.user === own ? tab.name : `${tab.user}: ${tab.name}`}
        </button>
      ))}
      {chosen?.user === own && (
        <Button
          kind="quiet"
          aria-label={`change the view ${chosen.name}`}
          {...change}
          onClick={() => setDialog(chosen)}
        >
          …
        </Button>
      )}
      {chosen === undefined && !isAll && (
        <Button kind="quiet" {...change} onClick={() => setDialog("new")}>
          + Save view
        </Button>
      )}
      {dialog !== null && (
        <ViewDialog
          tab={dialog === "new" ? null : dialog}
          page={page}
          search={search}
          own={views.filter((view) => view.user === own)}
          onClose={() => setDialog(null)}
          onDone={reload}
          onLoad={(view) => viewsOf(page, [view], normalise).forEach((each) => onChange(each.search))}
        />
      )}
    </div>
  );
}
