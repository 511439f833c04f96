import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Link, useLocation, useParams, useSearchParams } from "wouter-preact";
import { api, ApiError, data } from "@/api/client";
import { type Dataset, type DatasetVersion, listVersions } from "@/api/datasets";
import { usePolled } from "@/api/polling";
import { whyNoDelete } from "@/api/rights";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { type TabLink, TabLinks } from "@/parts/tab_links";
import { formatBytes, formatCount } from "@/text/format";
import { BoardTab } from "./board_tab";
import { DeleteDialog } from "./delete_dialog";
import { Description } from "./description";
import { FilesTab } from "./files_tab";
import { RunsTab } from "./runs_tab";
import { VersionsTab } from "./versions_tab";
import styles from "./dataset_page.module.css";

const POLL_MS = 5000; // descriptions and versions come without an event
const TABS = { board: "Leaderboard", files: "Files", versions: "Versions", runs: "Runs" } as const;
type Tab = keyof typeof TABS;

/** A dataset: its leaderboard, files, versions, and the runs that use it. */
export function DatasetPage() {
  const name = useParams()["name"] ?? "";
  const {
    data: loaded,
    error,
    reload,
  } = usePolled(
    `dataset ${name}`,
    async () => {
      const [dataset, versions] = await Promise.all([
        data(api.GET("/api/v1/datasets/{name}", { params: { path: { name } } })),
        listVersions(name),
      ]);
      return { dataset, versions };
    },
    () => POLL_MS,
  );
  if (loaded === null) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 422)) {
      return (
        <Empty title={`There is no dataset ${name}`}>
          {error.hints.map((hint) => (
            <p key={hint}>{hint}</p>
          ))}
          <Link href="/datasets">All datasets</Link>
        </Empty>
      );
    }
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  return <DatasetView key={name} {...loaded} error={error} reload={reload} />;
}

function DatasetView({
  dataset,
  versions,
  error,
  reload,
}: {
  dataset: Dataset;
  versions: DatasetVersion[];
  error: unknown;
  reload: () => void;
}) {
  const [search] = useSearchParams();
  const [, navigate] = useLocation();
  const [isDeleting, setDeleting] = useState(false);
  const tab = (Object.keys(TABS) as Tab[]).find((each) => each === search.get("tab")) ?? "board";
  const address = `/datasets/${encodeURIComponent(dataset.name)}`;
  useEffect(() => {
    document.title = `${dataset.name} · Hopyard`;
    return () => {
      document.title = "Hopyard";
    };
  }, [dataset.name]);
  const counts: Partial<Record<Tab, number>> = { versions: dataset.versions, runs: dataset.runs ?? 0 };
  const tabs = (Object.keys(TABS) as Tab[]).map((key): TabLink => ({
    key,
    title: key in counts ? `${TABS[key]} ${counts[key]?.toLocaleString("en")}` : TABS[key],
    href: key === "board" ? address : `${address}?tab=${key}`,
  }));
  const contents: Record<Tab, () => ComponentChildren> = {
    board: () => <BoardTab dataset={dataset} versions={versions} reload={reload} />,
    files: () => <FilesTab dataset={dataset} versions={versions} />,
    versions: () => <VersionsTab dataset={dataset} versions={versions} reload={reload} />,
    runs: () => <RunsTab dataset={dataset} />,
  };
  const { newest } = dataset;
  const refusal = whyNoDelete(versions);
  return (
    <div class={page["page"]}>
      <StaleNotice error={error} />
      <header class={page["head"]}>
        <div class={styles["title"]}>
          <h1>
            <Name text={dataset.name} />
          </h1>
          {newest && (
            <span class={page["quiet"]}>
              version {newest.number} · {formatCount(newest.files, "file")} · {formatBytes(newest.size_bytes)}
            </span>
          )}
        </div>
        <div class={styles["actions"]}>
          <Button onClick={() => navigate(`/datasets?push=${encodeURIComponent(dataset.name)}`)}>
            New version
          </Button>
          <Button kind="danger" disabled={refusal !== ""} title={refusal} onClick={() => setDeleting(true)}>
            Delete
          </Button>
        </div>
      </header>
      {newest?.message && <p class={styles["message"]}>{newest.message}</p>}
      <Description dataset={dataset} versions={versions} reload={reload} />
      <TabLinks label="parts of the dataset" tabs={tabs} current={tab} />
      {contents[tab]()}
      {isDeleting && (
        <DeleteDialog
          dataset={dataset}
          onClose={() => setDeleting(false)}
          onDeleted={() => navigate("/datasets")}
        />
      )}
    </div>
  );
}
