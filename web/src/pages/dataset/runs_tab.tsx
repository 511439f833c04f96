import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import type { Dataset } from "@/api/datasets";
import { usePolled } from "@/api/polling";
import type { Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { type DataColumn, DataTable } from "@/parts/data_table";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { PhaseBadge } from "@/parts/phase";
import { Time } from "@/parts/time";
import styles from "./dataset_page.module.css";

const PAGE_ROWS = 100;
const POLL_MS = 5000;

/** The runs that use a dataset, newest first. Earlier pages are read once. */
export function RunsTab({ dataset }: { dataset: Dataset }) {
  const [earlier, setEarlier] = useState<Schemas["RunsOut"][]>([]);
  const [failure, setFailure] = useState<unknown>(null);
  const load = (before?: string) =>
    data(
      api.GET("/api/v1/runs", {
        params: {
          query: {
            dataset: dataset.name,
            archived: "any",
            limit: PAGE_ROWS,
            ...(before === undefined ? {} : { before }),
          },
        },
      }),
    );
  const { data: first, error } = usePolled(
    `runs on ${dataset.name}`,
    () => load(),
    () => POLL_MS,
  );
  if (first === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (first.runs.length === 0) {
    return <Empty title="No run uses it yet" command={`hop run main.py -d ${dataset.name}`} />;
  }
  const runs = [
    ...new Map([first, ...earlier].flatMap((each) => each.runs.map((run) => [run.id, run]))).values(),
  ];
  const last = earlier.at(-1) ?? first;
  const columns: DataColumn<Run>[] = [
    {
      key: "run",
      title: "Run",
      value: (row) => row.spec.label || row.name,
      cell: (row) => (
        <span class={styles["run"]}>
          <Link href={`/runs/${row.name}`}>{row.spec.label || row.name}</Link>
          {row.spec.label && <span class={page["quiet"]}>{row.name}</span>}
        </span>
      ),
    },
    {
      key: "phase",
      title: "State",
      value: (row) => row.phase,
      cell: (row) => <PhaseBadge phase={row.phase} />,
    },
    {
      key: "version",
      title: "Version",
      value: (row) => versionOf(row, dataset.name),
      cell: (row) => {
        const version = versionOf(row, dataset.name);
        return version ? (
          <Link href={`/datasets/${encodeURIComponent(dataset.name)}?tab=files&version=${version}`}>
            {version}
          </Link>
        ) : (
          "newest"
        );
      },
      isNumber: true,
    },
    { key: "user", title: "User", value: (row) => row.name.split("/")[0] },
    {
      key: "submitted",
      title: "Submitted",
      value: (row) => row.submitted_at,
      cell: (row) => <Time at={row.submitted_at} />,
    },
  ];
  const filter = new URLSearchParams({ filter: `dataset ~ "${dataset.name}"` });
  return (
    <>
      <p class={page["quiet"]}>
        Runs that mount {dataset.name}.{" "}
        <Link href={`/runs?${filter.toString()}`}>Filter, compare and edit them</Link>
      </p>
      <DataTable label="runs on the dataset" columns={columns} rows={runs} rowKey={(row) => row.id} />
      {failure !== null && <ErrorNotice error={failure} />}
      {last.next !== null && (
        <div class={page["bar"]}>
          <Button
            onClick={() => {
              setFailure(null);
              load(last.next ?? undefined)
                .then((more) => setEarlier((old) => [...old, more]))
                .catch(setFailure);
            }}
          >
            Earlier runs
          </Button>
        </div>
      )}
    </>
  );
}

function versionOf(run: Run, name: string): number | null {
  return run.spec.datasets?.find((each) => each.name === name)?.version || null;
}
