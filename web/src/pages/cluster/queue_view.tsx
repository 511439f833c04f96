import { Link } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatDuration } from "@/text/format";
import { formatAmounts, shownResource } from "./amounts";
import styles from "./cluster.module.css";
import { queueHref } from "./cluster_data";
import { QueueBar } from "./queues_tab";
import { useLive } from "./use_live";
import { WaitingTable } from "./waiting_tab";

type Queue = Schemas["QueueOut"];
type QueueUser = Schemas["QueueUserOut"];
const SHOWN_WAITING = 20;

async function readQueue(name: string) {
  const [queue, all] = await Promise.all([
    data(api.GET("/api/v1/queues/{queue}", { params: { path: { queue: name } } })),
    data(api.GET("/api/v1/queues")),
  ]);
  const waiting = queue.leaf
    ? await data(
        api.GET("/api/v1/runs", {
          params: {
            query: {
              phase: "queued",
              sort: "position",
              where: `queue = "${queue.name}"`,
              limit: SHOWN_WAITING,
            },
          },
        }),
      )
    : { runs: [] };
  return { queue, all, waiting: waiting.runs };
}

/** A queue: why another gets more, its limits and rules, its users in their order, and its first waiting runs. */
export function QueueView({ name }: { name: string }) {
  const { data: found, error } = useLive(`queue ${name}`, () => readQueue(name), [
    "queues",
    "run",
    "node",
    "reservation",
  ]);
  if (!found) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const { queue, all, waiting } = found;
  const resource = shownResource(all.cluster);
  return (
    <>
      <div class={pageStyles["head"]}>
        <h2 class={styles["name"]}>
          <Link href="/cluster?tab=queues">Queues</Link> /{" "}
          {queue.parent !== null && (
            <>
              <Link href={queueHref(queue.parent)}>{queue.parent}</Link> /{" "}
            </>
          )}
          {queue.name}
        </h2>
        <Link href={`/cluster?tab=timeline&by=queue&queue=${encodeURIComponent(queue.name)}`}>Timeline</Link>
      </div>
      <p class={styles["why"]}>{queue.why}</p>
      <QueueBar queue={queue} resource={resource} total={all.cluster[resource] ?? 0} />
      <Facts queue={queue} owner={all.owner} />
      {(queue.users ?? []).length > 0 && (
        <section class={pageStyles["panel"]}>
          <h2>Users, in their order for the next start</h2>
          <DataTable
            label="users of the queue"
            columns={USERS}
            rows={queue.users ?? []}
            rowKey={(user) => user.user}
          />
          <p class={pageStyles["quiet"]}>Past usage halves every {formatDuration(all.half_life_s)}.</p>
        </section>
      )}
      {waiting.length > 0 && (
        <section class={pageStyles["panel"]}>
          <h2>
            First in line{" "}
            <Link href={`/cluster?tab=waiting&queue=${encodeURIComponent(queue.name)}`}>
              all {queue.waiting} waiting
            </Link>
          </h2>
          <WaitingTable runs={waiting} />
        </section>
      )}
    </>
  );
}

const percent = (share: number) => `${(share * 100).toFixed(1)}%`;

const USERS: readonly DataColumn<QueueUser>[] = [
  { key: "user", title: "User", cell: (user) => user.user },
  { key: "used", title: "Used", cell: (user) => formatAmounts(user.used) },
  { key: "share", title: "Share", cell: (user) => percent(user.share), isNumber: true },
  { key: "past", title: "Past", cell: (user) => percent(user.past_share), isNumber: true },
  { key: "running", title: "Running", cell: (user) => user.running, isNumber: true },
  { key: "waiting", title: "Waiting", cell: (user) => user.waiting, isNumber: true },
];

function Facts({ queue, owner }: { queue: Queue; owner: string }) {
  const rules = [
    ...(queue.reclaims ? ["reclaims what it lent"] : []),
    ...(queue.preempts_lower ? ["higher priorities preempt lower ones"] : []),
    ...(queue.time_slices ? ["runs that have run long can be preempted (time slices)"] : []),
    ...(queue.no_preempt ? [] : ["its runs can always be preempted"]),
  ];
  const [low, high] = queue.priorities;
  const facts: [string, string][] = [
    ["Used", formatAmounts(queue.used)],
    ["Share of the cluster", percent(queue.share)],
    ["Guarantee", formatAmounts(queue.guarantee)],
    ["Maximum", formatAmounts(queue.maximum)],
    ["May borrow", formatAmounts(queue.borrow_limit)],
    ["May lend", formatAmounts(queue.lend_limit)],
    ["Per user", formatAmounts(queue.user_limit)],
    ["Borrowed", formatAmounts(queue.borrowed)],
    ["Lent", formatAmounts(queue.lent)],
    ["Weight", String(queue.weight)],
    ["Runs", `${queue.running} running, ${queue.waiting} waiting`],
    ["Priorities", `${low} to ${high}, by default ${queue.default_priority}`],
    ["Preemption", rules.join("; ")],
    ["Submitters", queue.submitters.join(", ") || "all users"],
    ["Administrators", [...new Set([...queue.admins, owner])].join(", ")],
    ["Reserved", (queue.reservations ?? []).map((one) => one.name).join(", ")],
  ];
  return (
    <dl class={styles["facts"]}>
      {facts
        .filter(([, text]) => text !== "" && text !== "–")
        .map(([label, text]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{text}</dd>
          </div>
        ))}
    </dl>
  );
}
