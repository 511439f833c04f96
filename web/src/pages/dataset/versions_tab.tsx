import { useMemo, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import type { Dataset, DatasetVersion } from "@/api/datasets";
import { whyNoDelete } from "@/api/rights";
import { type DataColumn, DataTable } from "@/parts/data_table";
import { Empty } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { Time } from "@/parts/time";
import { formatBytes } from "@/text/format";
import { DeleteDialog } from "./delete_dialog";
import styles from "./dataset_page.module.css";

/** The versions of a dataset, with what each was made from. */
export function VersionsTab({
  dataset,
  versions,
  reload,
}: {
  dataset: Dataset;
  versions: readonly DatasetVersion[];
  reload: () => void;
}) {
  const [deleting, setDeleting] = useState<number | null>(null);
  const columns = useMemo(
    (): DataColumn<DatasetVersion>[] => [
      {
        key: "version",
        title: "Version",
        value: (row) => row.number,
        cell: (row) => <Link href={filesOf(row.dataset, row.number)}>{row.number}</Link>,
        isNumber: true,
      },
      {
        key: "size",
        title: "Size",
        value: (row) => row.size_bytes,
        cell: (row) => formatBytes(row.size_bytes),
        isNumber: true,
      },
      {
        key: "files",
        title: "Files",
        value: (row) => row.files,
        cell: (row) => row.files.toLocaleString("en"),
        isNumber: true,
      },
      {
        key: "pushed",
        title: "Pushed",
        value: (row) => row.created_at,
        cell: (row) => <Time at={row.created_at} />,
      },
      { key: "by", title: "By", value: (row) => row.created_by },
      {
        key: "from",
        title: "Made from",
        value: (row) => row.derived_from,
        cell: (row) => <Origin text={row.derived_from ?? ""} />,
      },
      {
        key: "message",
        title: "Message",
        value: (row) => row.message,
        cell: (row) => <span class={styles["text"]}>{row.message}</span>,
      },
      {
        key: "manifest",
        title: "Manifest",
        cell: (row) => (
          <code title={row.manifest} class={page["quiet"]}>
            {row.manifest.slice(0, 12)}
          </code>
        ),
      },
      {
        key: "delete",
        title: "",
        cell: (row) => (
          <button
            type="button"
            class={styles["action"]}
            aria-label={`delete version ${row.number}`}
            disabled={whyNoDelete([row]) !== ""}
            title={whyNoDelete([row])}
            onClick={() => setDeleting(row.number)}
          >
            Delete
          </button>
        ),
      },
    ],
    [],
  );
  if (versions.length === 0) {
    return <Empty title="No versions" command={`hop dataset push ${dataset.name} PATH`} />;
  }
  return (
    <>
      <DataTable
        label="versions"
        columns={columns}
        rows={versions}
        rowKey={(row) => String(row.number)}
        sort="-version"
      />
      <p class={page["quiet"]}>
        <code>hop dataset pull {dataset.name}:VERSION</code> downloads a version.{" "}
        <code>hop dataset push --from NAME:VERSION</code> records what the data was made from.
      </p>
      {deleting !== null && (
        <DeleteDialog
          dataset={dataset}
          version={deleting}
          onClose={() => setDeleting(null)}
          onDeleted={reload}
        />
      )}
    </>
  );
}

function filesOf(name: string, number: number | string): string {
  return `/datasets/${encodeURIComponent(name)}?tab=files&version=${number}`;
}

function Origin({ text }: { text: string }) {
  const [name = "", number = ""] = text.split(":");
  return text === "" ? null : <Link href={filesOf(name, number)}>{text}</Link>;
}
