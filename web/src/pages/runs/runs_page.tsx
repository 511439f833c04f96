import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { ApiError } from "@/api/client";
import { whyNoChange, whyNoSubmit } from "@/api/rights";
import { Button } from "@/parts/button";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import { SavedViews } from "@/parts/saved_views";
import { useShortcuts } from "@/shell/keys";
import { isLive, sendBatch, type Action } from "./batch";
import { BatchDialog, BulkBar } from "./bulk_bar";
import { isSortable, knownColumns, queryName, usualColumns, type Run } from "./columns";
import { ColumnsMenu } from "./columns_menu";
import { EditDialog } from "./edit_dialog";
import { FILTER_ID, FilterBox } from "./filter_box";
import { fieldNames, likelyQuery } from "./filter_hint";
import styles from "./runs_page.module.css";
import { RunsTable } from "./runs_table";
import { extend, keep, NOTHING, toggle, type Selection } from "./selection";
import { useGroupCounts, useQueryNames } from "./server_counts";
import { useRuns } from "./use_runs";
import { parseView, SHOWN, viewSearch, type View } from "./view";

const TICK_MS = 1000;
const ASKED: readonly Action[] = ["stop", "archive", "delete"]; // with a dialog

function useNow(isTicking: boolean): number {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    const timer = window.setInterval(() => setNow(serverNow()), isTicking ? TICK_MS : 30 * TICK_MS);
    return () => window.clearInterval(timer);
  }, [isTicking]);
  return now;
}

/** The table of runs. Its whole state is in the address, so that a link shows the same. */
export function RunsPage() {
  const [, navigate] = useLocation();
  const [search, setSearch] = useSearchParams();
  const address = search.toString();
  const view = useMemo(() => parseView(new URLSearchParams(address)), [address]);
  const setView = (next: View) => setSearch(viewSearch(next), { replace: next.filter !== view.filter });
  const change = (part: Partial<View>) => setView({ ...view, ...part });

  const listing = useRuns(view);
  const { runs } = listing;
  const order = useMemo(() => runs.map((run) => run.id), [runs]);
  const [selection, setSelection] = useState<Selection>(NOTHING);
  const [active, setActive] = useState<string | null>(null);
  const [action, setAction] = useState<Action | null>(null);
  const [edited, setEdited] = useState<Run | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const now = useNow(runs.slice(0, 100).some(isLive));
  useEffect(() => setSelection((old) => keep(old, order)), [order]);

  // the page's own choice of columns is made once: columns that come and go would move all others
  const usual = useRef<readonly string[]>([]);
  if (usual.current.length === 0 && runs.length > 0) {
    usual.current = usualColumns(runs.slice(0, 200));
  }
  const columns = view.columns.length > 0 ? view.columns : usual.current;
  const known = useMemo(
    () => [...new Set([...columns, ...knownColumns(runs.slice(0, 500))])],
    [columns, runs],
  );
  const hasLoaded = useRef(false);
  hasLoaded.current ||= !listing.isLoading;
  const allNames = useQueryNames(view, hasLoaded.current);
  const names = useMemo(
    () => [...new Set([...known.filter(isSortable).map(queryName), ...allNames])],
    [known, allNames],
  );
  const counts = useGroupCounts(view);

  const chosen = runs.filter((run) => selection.ids.has(run.id));
  const refusals = chosen.map((run) => whyNoChange(run));
  const current = runs.find((run) => run.id === active);
  const step = (by: number) => {
    const index = active === null ? -1 : order.indexOf(active);
    return order[Math.max(0, Math.min(order.length - 1, index + by))];
  };
  const moveTo = (id: string | undefined, isExtending = false) => {
    if (id !== undefined) {
      if (isExtending) {
        setSelection((old) =>
          extend(active === null || old.anchor !== null ? old : toggle(old, active), order, id),
        );
      }
      setActive(id);
    }
  };
  const open = (id: string) => navigate(`/runs/${id}`);
  const compare = () => {
    if (chosen.length > 1) {
      navigate(`/compare?${new URLSearchParams(chosen.map((run) => ["run", run.id])).toString()}`);
    }
  };
  const send = (what: Action, targets: readonly Run[]) => {
    setFailure(null);
    sendBatch(
      targets.map((run) => run.id),
      what,
    )
      .then((done) => {
        const refused = done.results.find((one) => one.error !== null)?.error;
        setFailure(refused ? new ApiError(400, refused.code, refused.message, refused.hints) : null);
        listing.refresh();
      })
      .catch(setFailure);
  };
  const attempt = (reason: string, action: () => void) => {
    setFailure(reason === "" ? null : new ApiError(403, "forbidden", reason));
    if (reason === "") {
      action();
    }
  };
  const star = (run: Run) => attempt(whyNoSubmit(), () => send(run.starred ? "unstar" : "star", [run]));
  const edit = (run: Run) => attempt(whyNoChange(run), () => setEdited(run));
  const ask = (what: Action) => {
    if (ASKED.includes(what)) {
      setAction(what);
    } else {
      send(what, chosen);
    }
  };
  const section = "Runs";
  useShortcuts([
    { keys: "/", text: "Filter", section, run: () => document.getElementById(FILTER_ID)?.focus() },
    { keys: "j", text: "Next run", section, run: () => moveTo(step(1)) },
    { keys: "k", text: "Run before", section, run: () => moveTo(step(-1)) },
    { keys: "ArrowDown", text: "Next run", section, isRepeat: true, run: () => moveTo(step(1)) },
    { keys: "ArrowUp", text: "Run before", section, isRepeat: true, run: () => moveTo(step(-1)) },
    { keys: "PageDown", text: "Ten runs down", section, isRepeat: true, run: () => moveTo(step(10)) },
    { keys: "PageUp", text: "Ten runs up", section, isRepeat: true, run: () => moveTo(step(-10)) },
    { keys: "Home", text: "First run", section, run: () => moveTo(order[0]) },
    { keys: "End", text: "Last run that is loaded", section, run: () => moveTo(order.at(-1)) },
    { keys: "Enter", text: "Open the run", section, run: () => active !== null && open(active) },
    {
      keys: "x",
      text: "Select the run",
      section,
      run: () => active !== null && setSelection(toggle(selection, active)),
    },
    { keys: "Shift+ArrowDown", text: "Select downwards", section, run: () => moveTo(step(1), true) },
    { keys: "Shift+ArrowUp", text: "Select upwards", section, run: () => moveTo(step(-1), true) },
    { keys: "Escape", text: "Select nothing", section, run: () => setSelection(NOTHING) },
    { keys: "c", text: "Compare the selected runs", section, run: compare },
    { keys: "s", text: "Star the run", section, run: () => current && star(current) },
    { keys: "e", text: "Edit name, tags and note", section, run: () => current && edit(current) },
  ]);

  const isFilterRefused = listing.error instanceof ApiError && listing.error.status === 400;
  return (
    <div class={styles["page"]}>
      <h1 class={styles["hidden"]}>Runs</h1>
      <SavedViews
        page="runs"
        usual="All runs"
        search={viewSearch(view).toString()}
        normalise={(search) => viewSearch(parseView(new URLSearchParams(search))).toString()}
        onChange={(search) => setView(parseView(new URLSearchParams(search)))}
      />
      <div class={styles["toolbar"]}>
        <FilterBox
          value={view.filter}
          error={listing.error}
          names={names}
          onChange={(filter) => change({ filter })}
        />
        <label class={styles["choice"]}>
          Show
          <select
            class={fieldStyles["input"]}
            value={view.shown}
            onChange={(event) =>
              change({ shown: SHOWN.find((shown) => shown === event.currentTarget.value) ?? "current" })
            }
          >
            {SHOWN.map((shown) => (
              <option key={shown} value={shown}>
                {shown}
              </option>
            ))}
          </select>
        </label>
        <label class={styles["choice"]}>
          Group
          <select
            class={fieldStyles["input"]}
            value={view.group}
            onChange={(event) => change({ group: event.currentTarget.value })}
          >
            <option value="">none</option>
            {[...new Set([view.group, ...known])]
              .filter((name) => name !== "" && isSortable(name))
              .map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
          </select>
        </label>
        <ColumnsMenu
          columns={columns}
          known={known}
          isUsual={view.columns.length === 0}
          onChange={(next) => change({ columns: next })}
        />
      </div>
      {failure !== null && <ErrorNotice error={failure} />}
      {!isFilterRefused && <StaleNotice error={listing.error} />}
      {runs.length > 0 ? (
        <div
          class={`${styles["table"]} ${listing.isLoading ? styles["stale"] : ""}`}
          aria-busy={listing.isLoading}
        >
          <RunsTable
            runs={runs}
            columns={columns}
            sort={view.group === "" ? view.sort : ""}
            group={view.group}
            isComplete={listing.isComplete}
            counts={counts}
            selection={selection}
            active={active}
            now={now}
            onSort={(sort) => change({ sort, group: "" })}
            onSelect={(id, kind) =>
              setSelection((old) => (kind === "extend" ? extend(old, order, id) : toggle(old, id)))
            }
            onActivate={setActive}
            onOpen={open}
            onStar={star}
            onEnd={listing.loadMore}
          />
        </div>
      ) : listing.isLoading ? (
        <Loading rows={16} />
      ) : view.filter !== "" || view.shown !== "current" ? (
        !isFilterRefused && (
          <Empty title={view.filter === "" ? `No ${view.shown} runs` : "No run matches the filter"}>
            <p>Remove a condition, or choose “All runs” above.</p>
            {view.filter !== "" && (
              <FilterHint filter={view.filter} names={names} onChange={(filter) => change({ filter })} />
            )}
          </Empty>
        )
      ) : (
        listing.error === null && (
          <Empty title="No runs yet" command="hop run main.py -d mnist">
            <p>
              Start a <Link href="/new">new run</Link> here, or type this in the folder of your script. The
              run appears at once.
            </p>
          </Empty>
        )
      )}
      {chosen.length > 0 && (
        <BulkBar
          count={chosen.length}
          refusal={refusals.includes("") ? "" : (refusals[0] ?? "")}
          isArchived={view.shown === "archived"}
          onCompare={compare}
          onAction={ask}
          onClear={() => setSelection(NOTHING)}
        />
      )}
      {action !== null && (
        <BatchDialog action={action} runs={chosen} onClose={() => setAction(null)} onDone={listing.refresh} />
      )}
      {edited !== null && (
        <EditDialog run={edited} onClose={() => setEdited(null)} onDone={listing.refresh} />
      )}
    </div>
  );
}

/** The query that the words seem to mean, and the names of fields. */
function FilterHint({
  filter,
  names,
  onChange,
}: {
  filter: string;
  names: readonly string[];
  onChange: (filter: string) => void;
}) {
  const fields = fieldNames(names);
  const likely = likelyQuery(filter, fields);
  return (
    <>
      {likely !== null && (
        <p>
          These are words of a search. Did you mean{" "}
          <Button kind="quiet" onClick={() => onChange(likely)}>
            {likely}
          </Button>
        </p>
      )}
      <p>
        A query compares fields: <code>{fields.join(", ")}</code>
      </p>
    </>
  );
}
