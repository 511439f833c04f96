import { useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { queueHref } from "./cluster_data";
import { useLive } from "./use_live";

type Run = Schemas["RunOut"];
const PAGE = 200;

async function readWaiting(queue: string, count: number): Promise<{ runs: Run[]; hasMore: boolean }> {
  const runs: Run[] = [];
  let before: string | null = null;
  do {
    const page: Schemas["RunsOut"] = await data(
      api.GET("/api/v1/runs", {
        params: {
          query: {
            phase: "queued",
            sort: "position",
            limit: PAGE,
            ...(queue === "" ? {} : { where: `queue = ${JSON.stringify(queue)}` }),
            ...(before === null ? {} : { before }),
          },
        },
      }),
    );
    runs.push(...page.runs);
    before = page.next;
  } while (before !== null && runs.length < count);
  return { runs, hasMore: before !== null };
}

/** The waiting line in its order, with the reason and the expected start of each run. */
export function WaitingTab() {
  const [address, setAddress] = useSearchParams();
  const queue = address.get("queue") ?? "";
  const [count, setCount] = useState(PAGE);
  const queues = useLive("queues", () => data(api.GET("/api/v1/queues")), ["queues", "run"]);
  const waiting = useLive(
    `waiting ${queue} ${count}`,
    () => readWaiting(queue, count),
    ["run", "queues", "node"],
    10_000,
  );
  const leaves = (queues.data?.queues ?? []).filter(
    (each) => each.leaf && (each.waiting > 0 || each.name === queue),
  );
  const total = leaves
    .filter((each) => queue === "" || each.name === queue)
    .reduce((sum, each) => sum + each.waiting, 0);
  return (
    <>
      <div class={pageStyles["bar"]}>
        <label>
          Queue
          <select
            class={fieldStyles["input"]}
            value={queue}
            onChange={(event) => {
              const chosen = event.currentTarget.value;
              setAddress({ tab: "waiting", ...(chosen === "" ? {} : { queue: chosen }) }, { replace: true });
            }}
          >
            <option value="">all, the first of each first</option>
            {queue !== "" && !leaves.some((each) => each.name === queue) && (
              <option value={queue}>{queue}</option>
            )}
            {leaves.map((each) => (
              <option key={each.name} value={each.name}>
                {each.name} ({each.waiting})
              </option>
            ))}
          </select>
        </label>
        <span class={pageStyles["quiet"]} role="status">
          {queues.data && `${total} waiting`}
        </span>
      </div>
      {!waiting.data && (waiting.error === null ? <Loading /> : <ErrorNotice error={waiting.error} />)}
      {waiting.data?.runs.length === 0 && (
        <Empty title="No run waits" command="hop run main.py">
          <p>A run that cannot start at once waits here, with the reason.</p>
        </Empty>
      )}
      {waiting.data && waiting.data.runs.length > 0 && <WaitingTable runs={waiting.data.runs} />}
      {waiting.data?.hasMore && (
        <div>
          <Button onClick={() => setCount((old) => Math.max(old, waiting.data?.runs.length ?? 0) + PAGE)}>
            Show {PAGE} more
          </Button>
        </div>
      )}
    </>
  );
}

const COLUMNS: readonly DataColumn<Run>[] = [
  { key: "position", title: "Position", cell: (run) => run.position ?? "–", isNumber: true },
  { key: "run", title: "Run", cell: (run) => <Link href={`/runs/${run.id}`}>{run.name}</Link> },
  { key: "label", title: "Name", cell: (run) => run.spec.label ?? "" },
  {
    key: "queue",
    title: "Queue",
    cell: (run) => (run.spec.queue ? <Link href={queueHref(run.spec.queue)}>{run.spec.queue}</Link> : ""),
  },
  { key: "priority", title: "Priority", cell: (run) => run.spec.priority ?? "", isNumber: true },
  { key: "start", title: "Expected start", cell: (run) => <Start run={run} /> },
  {
    key: "why",
    title: "Why it waits",
    cell: (run) => (
      <span title={run.hold_detail}>{run.hold_detail || "no cycle of the scheduler has seen it yet"}</span>
    ),
  },
  { key: "since", title: "Submitted", cell: (run) => <Time at={run.submitted_at} /> },
];

function Start({ run }: { run: Run }) {
  if (run.expected_at !== null) {
    return <Time at={run.expected_at} />;
  }
  return run.promised_at === null ? (
    <>–</>
  ) : (
    <>
      by <Time at={run.promised_at} />
    </>
  );
}

/** Waiting runs in the given order. */
export function WaitingTable({ runs }: { runs: readonly Run[] }) {
  return <DataTable label="waiting runs" columns={COLUMNS} rows={runs} rowKey={(run) => run.id} />;
}
