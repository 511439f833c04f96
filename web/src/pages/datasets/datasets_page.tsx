import { useMemo } from "preact/hooks";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { type Dataset, getBoard, listDatasets } from "@/api/datasets";
import { usePolled } from "@/api/polling";
import { Button } from "@/parts/button";
import { type DataColumn, DataTable } from "@/parts/data_table";
import field from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { useShortcuts } from "@/shell/keys";
import { formatAge, formatBytes, formatNumber } from "@/text/format";
import { matches } from "./matches";
import { PushPage } from "./push_page";
import styles from "./datasets_page.module.css";

const POLL_MS = 10_000;
const FILTER_ID = "datasets-filter";

const COLUMNS: readonly DataColumn<Dataset>[] = [
  {
    key: "name",
    title: "Dataset",
    value: (row) => row.name,
    cell: (row) => <Link href={`/datasets/${encodeURIComponent(row.name)}`}>{row.name}</Link>,
  },
  { key: "versions", title: "Versions", value: (row) => row.versions, isNumber: true },
  {
    key: "size",
    title: "Size",
    value: (row) => row.newest?.size_bytes,
    cell: (row) => (row.newest ? formatBytes(row.newest.size_bytes) : "–"),
    isNumber: true,
  },
  {
    key: "files",
    title: "Files",
    value: (row) => row.newest?.files,
    cell: (row) => row.newest?.files.toLocaleString("en") ?? "–",
    isNumber: true,
  },
  {
    key: "pushed",
    title: "Pushed",
    value: (row) => row.newest?.created_at,
    cell: (row) =>
      row.newest ? (
        <time dateTime={row.newest.created_at} title={row.newest.created_at}>
          {formatAge(row.newest.created_at, serverNow())}
        </time>
      ) : (
        "–"
      ),
  },
  { key: "by", title: "By", value: (row) => row.newest?.created_by },
  {
    key: "runs",
    title: "Runs",
    value: (row) => row.runs,
    cell: (row) =>
      row.runs ? (
        <Link href={`/datasets/${encodeURIComponent(row.name)}?tab=runs`}>
          {row.runs.toLocaleString("en")}
        </Link>
      ) : (
        "0"
      ),
    isNumber: true,
  },
  { key: "best", title: "Best", cell: (row) => <Best dataset={row} /> },
  {
    key: "message",
    title: "Message",
    value: (row) => row.newest?.message,
    cell: (row) => <span class={styles["message"]}>{row.newest?.message}</span>,
  },
];

/** All datasets, with the best run of each; `?push=NAME` makes a new version, `?push=` a new dataset. */
export function DatasetsPage() {
  const [search, setSearch] = useSearchParams();
  const filter = search.get("filter") ?? "";
  const sort = search.get("sort") ?? "";
  const [, navigate] = useLocation();
  const { data: datasets, error } = usePolled("datasets", listDatasets, () => POLL_MS);
  const change = (key: string, value: string) =>
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === "") {
          next.delete(key);
        } else {
          next.set(key, value);
        }
        return next;
      },
      { replace: true },
    );
  useShortcuts([
    {
      keys: "/",
      text: "Filter",
      section: "Datasets",
      run: () => document.getElementById(FILTER_ID)?.focus(),
    },
  ]);
  const shown = useMemo(
    () => datasets?.filter((dataset) => matches(dataset, filter)) ?? [],
    [datasets, filter],
  );
  const pushed = search.get("push");
  if (pushed !== null && datasets !== null) {
    return <PushPage key={pushed} name={pushed} datasets={datasets} />;
  }
  const startPush = () => navigate("/datasets?push=");
  return (
    <div class={page["page"]}>
      <header class={page["head"]}>
        <h1>Datasets</h1>
        {datasets !== null && datasets.length > 0 && (
          <div class={styles["tools"]}>
            <input
              id={FILTER_ID}
              type="search"
              class={`${field["input"]} ${styles["filter"]}`}
              placeholder="Filter by name, user or message"
              aria-label="filter"
              value={filter}
              onInput={(event) => change("filter", event.currentTarget.value)}
            />
            <Button kind="primary" onClick={startPush}>
              New dataset
            </Button>
          </div>
        )}
      </header>
      {datasets === null ? (
        error === null ? (
          <Loading />
        ) : (
          <ErrorNotice error={error} />
        )
      ) : datasets.length === 0 ? (
        <Empty title="No datasets yet">
          <p>A dataset is a folder with a name and versions. Runs find it as a local folder.</p>
          <Button kind="primary" onClick={startPush}>
            New dataset
          </Button>
          <p>
            Or in a terminal: <code>hop dataset push mnist data/mnist</code>
          </p>
        </Empty>
      ) : shown.length === 0 ? (
        <Empty title="No dataset matches the filter" />
      ) : (
        <DataTable
          label="datasets"
          columns={COLUMNS}
          rows={shown}
          rowKey={(row) => row.name}
          sort={sort}
          onSort={(next) => change("sort", next)}
        />
      )}
    </div>
  );
}

/** The first row of the leaderboard. It is read for rows in sight only. */
function Best({ dataset }: { dataset: Dataset }) {
  const { data: board } = usePolled(
    `best ${dataset.name} ${dataset.runs} ${dataset.metric}`,
    async () => (dataset.runs ? getBoard(dataset.name, { limit: 1 }) : null),
    () => null,
  );
  const first = board?.rows[0];
  return first ? (
    <Link href={`/runs/${first.name}`} title={`${first.name}, of ${board.ranked} ranked runs`}>
      {board.metric} {formatNumber(first.value)}
    </Link>
  ) : (
    <span class={page["quiet"]}>{dataset.metric}</span>
  );
}
