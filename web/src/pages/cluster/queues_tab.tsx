import { Link } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatAmount, formatAmounts, shownResource, type Amounts } from "./amounts";
import styles from "./cluster.module.css";
import { queueHref } from "./cluster_data";
import { useLive } from "./use_live";

export type Queue = Schemas["QueueOut"];

/** The tree of queues: guarantee, use, what is borrowed and lent, and how many runs wait. */
export function QueuesTab() {
  const { data: found, error } = useLive("queues", () => data(api.GET("/api/v1/queues")), [
    "queues",
    "run",
    "node",
  ]);
  if (!found) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const resource = shownResource(found.cluster);
  const isDeclared = found.queues.length > 1 || Object.keys(found.queues[0]?.guarantee ?? {}).length > 0;
  return (
    <>
      <StaleNotice error={error} />
      <div class={styles["scroll"]} tabIndex={0} role="group" aria-label="queues">
        <table class={styles["table"]} aria-label="queues">
          <thead>
            <tr>
              <th scope="col">Queue</th>
              <th scope="col" class={styles["barColumn"]}>
                {resource === "gpu" ? "GPUs" : "CPUs"} of the cluster
              </th>
              <th scope="col">Used</th>
              <th scope="col">Guarantee</th>
              <th scope="col">Borrowed</th>
              <th scope="col">Lent</th>
              <th scope="col">Limit</th>
              <th scope="col" class={styles["number"]}>
                Running
              </th>
              <th scope="col" class={styles["number"]}>
                Waiting
              </th>
            </tr>
          </thead>
          <tbody>
            {found.queues.map((queue) => (
              <tr key={queue.name}>
                <th scope="row" style={{ paddingLeft: `${12 + queue.depth * 20}px` }}>
                  <Link href={queueHref(queue.name)}>{queue.name}</Link>
                  {!queue.declared && " (removed)"}
                </th>
                <td>
                  <QueueBar queue={queue} resource={resource} total={found.cluster[resource] ?? 0} />
                </td>
                <td>{amount(queue.used, resource)}</td>
                <td>{formatAmounts(queue.guarantee)}</td>
                <td>{formatAmounts(queue.borrowed)}</td>
                <td>{formatAmounts(queue.lent)}</td>
                <td>{formatAmounts(queue.maximum)}</td>
                <td class={styles["number"]}>{queue.running}</td>
                <td class={styles["number"]}>
                  {queue.waiting > 0 && queue.leaf ? (
                    <Link href={`/cluster?tab=waiting&queue=${encodeURIComponent(queue.name)}`}>
                      {queue.waiting}
                    </Link>
                  ) : (
                    queue.waiting
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class={pageStyles["quiet"]}>
        Runs without a queue wait in {found.default}. The bar: use up to the guarantee, what is borrowed
        beyond it, and a line at the guarantee.
      </p>
      {!isDeclared && (
        <Empty title="One queue for all" command="hop queue apply queues.yaml">
          <p>Declare queues with guarantees and limits to share the cluster between teams.</p>
        </Empty>
      )}
    </>
  );
}

function amount(amounts: Amounts, resource: string): string {
  return amounts[resource] ? formatAmount(resource, amounts[resource] ?? 0) : "–";
}

/** What a queue uses of the cluster: within its guarantee, and beyond. */
export function QueueBar({ queue, resource, total }: { queue: Queue; resource: string; total: number }) {
  const used = queue.used[resource] ?? 0;
  const guarantee = queue.guarantee[resource] ?? 0;
  const part = (value: number) => `${total > 0 ? Math.min(100, (value / total) * 100) : 0}%`;
  const text = `${formatAmount(resource, used)} used, ${formatAmount(resource, guarantee)} guaranteed, of ${formatAmount(resource, total)}`;
  return (
    <div class={styles["queueBar"]} role="img" aria-label={text} title={text}>
      <span class={styles["own"]} style={{ width: part(guarantee > 0 ? Math.min(used, guarantee) : 0) }} />
      <span
        class={styles["beyond"]}
        style={{ width: part(guarantee > 0 ? Math.max(0, used - guarantee) : used) }}
      />
      {guarantee > 0 && <span class={styles["mark"]} style={{ left: part(guarantee) }} />}
    </div>
  );
}
