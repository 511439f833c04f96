import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { api, data, type Schemas } from "@/api/client";
import { whyNoNodes } from "@/api/rights";
import { session } from "@/api/session";
import { ActionDialog } from "@/parts/action_dialog";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatBytes, formatCount } from "@/text/format";
import styles from "./cluster.module.css";
import { queueHref, readAllocations, readTimeline } from "./cluster_data";
import { nodeState, stateReason, type Allocation } from "./node_tiles";
import { useLive } from "./use_live";

const MEASURE_MS = 5000;
const EVENTS_MS = 24 * 3600 * 1000;
const MAX_EVENTS = 100;

type Detail = Schemas["NodeDetailOut"];
type Dialog = "cordon" | "drain" | null;

async function readNode(id: string) {
  const [detail, runs] = await Promise.all([
    data(api.GET("/api/v1/nodes/{node}", { params: { path: { node: id } } })),
    readAllocations(id),
  ]);
  return { detail, runs };
}

/** A node: its state, its resources, its runs, what happened there, and what the owner may do to it. */
export function NodeView({ id }: { id: string }) {
  const {
    data: found,
    error,
    reload,
  } = useLive(`node ${id}`, () => readNode(id), ["node", "run", "reservation"], MEASURE_MS);
  if (!found) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const { detail, runs } = found;
  const { node } = detail;
  const state = nodeState(node, runs);
  const reason = stateReason(node);
  return (
    <>
      <div class={pageStyles["head"]}>
        <h2 class={styles["name"]}>
          <Link href="/cluster?tab=nodes">Nodes</Link> / {node.id}{" "}
          <span class={`${styles["badge"]} ${styles[`state-${state.replaceAll(" ", "-")}`]}`}>{state}</span>
        </h2>
        <Actions detail={detail} onDone={reload} />
      </div>
      {reason !== "" && <p class={pageStyles["stale"]}>{reason}</p>}
      <Resources detail={detail} />
      {node.gpus.length > 0 && <Gpus detail={detail} runs={runs} />}
      <section class={pageStyles["panel"]}>
        <h2>Runs</h2>
        {runs.length === 0 ? (
          <p class={pageStyles["quiet"]}>No run is on this node.</p>
        ) : (
          <DataTable label="runs of the node" columns={RUNS} rows={runs} rowKey={(run) => run.run} />
        )}
      </section>
      <Events id={id} />
    </>
  );
}

const RUNS: readonly DataColumn<Allocation>[] = [
  {
    key: "run",
    title: "Run",
    value: (run) => run.name,
    cell: (run) => <Link href={`/runs/${run.run}`}>{run.name}</Link>,
  },
  { key: "user", title: "User", value: (run) => run.user },
  {
    key: "queue",
    title: "Queue",
    value: (run) => run.queue,
    cell: (run) => <Link href={queueHref(run.queue)}>{run.queue}</Link>,
  },
  { key: "ranks", title: "Ranks", cell: (run) => run.ranks.join(", ") },
  { key: "gpus", title: "GPUs", cell: (run) => run.gpus.map((gpu) => gpu.index).join(", ") || "–" },
  { key: "cpu", title: "CPUs", value: (run) => run.cpu_milli / 1000, isNumber: true },
  {
    key: "busy",
    title: "CPU used",
    value: (run) => run.cpu_percent,
    cell: (run) => (run.cpu_percent === null ? "–" : `${Math.round(run.cpu_percent)}%`),
    isNumber: true,
  },
  {
    key: "memory",
    title: "Memory",
    value: (run) => run.memory_bytes,
    cell: (run) =>
      (run.used_memory_bytes === null ? "–" : formatBytes(run.used_memory_bytes)) +
      (run.memory_bytes > 0 ? ` of ${formatBytes(run.memory_bytes)}` : ""),
    isNumber: true,
  },
  {
    key: "since",
    title: "Since",
    value: (run) => run.placed_at,
    cell: (run) => <Time at={run.placed_at} />,
  },
  {
    key: "note",
    title: "",
    cell: (run) => (run.stopping ? "is asked to end" : run.preemptible ? "" : "not preemptible"),
  },
];

function Resources({ detail: { node, reservations } }: { detail: Detail }) {
  const extras = Object.entries(node.extras).map(
    ([name, count]) => `${node.used.extras?.[name] ?? 0} of ${count} ${name}`,
  );
  const facts: [string, string][] = [
    ["Pool", node.pool],
    ["CPUs", `${(node.used.cpu_milli ?? 0) / 1000} of ${node.cpu_milli / 1000} held`],
    ["Memory", `${formatBytes(node.used.memory_bytes ?? 0)} of ${formatBytes(node.memory_bytes)} held`],
    ["Others", extras.join(", ")],
    [
      "Labels",
      Object.entries(node.labels)
        .map(([key, value]) => `${key}=${value}`)
        .join("  "),
    ],
    ["Engine", node.engine],
    ["Server", node.server],
    [
      "Reserved",
      reservations
        .map(
          (one) =>
            `${one.name} (${one.active ? "now" : (one.next_start_at ?? "").slice(0, 16).replace("T", " ")})`,
        )
        .join(", "),
    ],
  ];
  return (
    <dl class={styles["facts"]}>
      {facts
        .filter(([, text]) => text !== "")
        .map(([label, text]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{text}</dd>
          </div>
        ))}
    </dl>
  );
}

function Gpus({ detail: { node }, runs }: { detail: Detail; runs: readonly Allocation[] }) {
  return (
    <section class={pageStyles["panel"]}>
      <h2>GPUs</h2>
      <ul class={styles["gpus"]}>
        {node.gpus.map((card) => {
          const holders = runs.flatMap((run) =>
            run.gpus.filter((gpu) => gpu.index === card.index).map((gpu) => ({ run, gpu })),
          );
          const gpu = holders.find((each) => each.gpu.utilisation_percent !== null)?.gpu;
          return (
            <li key={card.index}>
              <b>
                {card.index} {card.model}
              </b>
              <span class={pageStyles["quiet"]}>
                {gpu?.utilisation_percent == null
                  ? holders.length > 0
                    ? "not measured"
                    : "free"
                  : `${Math.round(gpu.utilisation_percent)}% busy, ${formatBytes(gpu.memory_bytes ?? 0)}`}
                {gpu?.temperature_celsius == null ? "" : `, ${Math.round(gpu.temperature_celsius)} °C`}
              </span>
              {holders.map(({ run, gpu: held }) => (
                <span key={run.run}>
                  <Link href={`/runs/${run.run}`}>{run.name}</Link>
                  {held.milli < 1000 && ` ${held.milli / 1000}`}
                </span>
              ))}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

interface NodeEvent {
  key: string;
  at: string;
  what: string;
  user: string;
  run: { id: string; name: string } | null;
}

async function readEvents(id: string): Promise<NodeEvent[]> {
  const since = new Date(serverNow() - EVENTS_MS).toISOString();
  const until = new Date(serverNow() + 1000).toISOString();
  const isOwner = session.value?.owner ?? false;
  const [timeline, records] = await Promise.all([
    readTimeline({ since, until, node: id }),
    isOwner
      ? data(
          api.GET("/api/v1/audit", { params: { query: { action: "node", target: id, limit: MAX_EVENTS } } }),
        )
      : Promise.resolve({ records: [] }),
  ]);
  const events: NodeEvent[] = timeline.spans
    .filter((span) => span.state !== "promised")
    .flatMap((span) => {
      const run = { id: span.run, name: span.name };
      const base = { user: span.user, run };
      const key = `${span.run} ${span.attempt ?? 0}`;
      const start = {
        ...base,
        key: `${key} start`,
        at: span.start_at,
        what: `attempt ${span.attempt ?? ""} placed here`,
      };
      return span.state === "ended" && span.end_at !== null
        ? [
            start,
            {
              ...base,
              key: `${key} end`,
              at: span.end_at,
              what: `attempt ${span.attempt ?? ""} ${span.phase}`,
            },
          ]
        : [start];
    });
  const changes = records.records.map((record) => ({
    key: `audit ${record.id}`,
    at: record.at,
    what: record.action + (record.outcome === "done" ? "" : `: ${record.outcome}`),
    user: record.user,
    run: null,
  }));
  return [...events, ...changes].sort((one, two) => two.at.localeCompare(one.at)).slice(0, MAX_EVENTS);
}

function Events({ id }: { id: string }) {
  const { data: events, error } = useLive(`events of ${id}`, () => readEvents(id), ["node", "run"]);
  return (
    <section class={pageStyles["panel"]}>
      <h2>Events of the last 24 hours</h2>
      {!events && (error === null ? <Loading rows={3} /> : <ErrorNotice error={error} />)}
      {events?.length === 0 && <p class={pageStyles["quiet"]}>Nothing happened here.</p>}
      {events && events.length > 0 && (
        <DataTable
          label="events of the node"
          rows={events}
          rowKey={(event) => event.key}
          columns={[
            { key: "at", title: "Time", cell: (event) => <Time at={event.at} /> },
            { key: "what", title: "What", cell: (event) => event.what },
            {
              key: "run",
              title: "Run",
              cell: (event) => event.run && <Link href={`/runs/${event.run.id}`}>{event.run.name}</Link>,
            },
            { key: "user", title: "User", cell: (event) => event.user },
          ]}
        />
      )}
    </section>
  );
}

function Actions({ detail, onDone }: { detail: Detail; onDone: () => void }) {
  const [dialog, setDialog] = useState<Dialog>(null);
  const [reason, setReason] = useState("");
  const [openedReason, setOpenedReason] = useState("");
  const [isAll, setAll] = useState(false);
  const [note, setNote] = useState("");
  const [error, setError] = useState<unknown>(null);
  const { node, runs } = detail;
  const path = { node: node.id };
  const uncordon = () => {
    setNote("");
    data(api.POST("/api/v1/nodes/{node}/uncordon", { params: { path } }))
      .then(() => {
        setError(null);
        onDone();
      })
      .catch(setError);
  };
  const cordon = async () => {
    await data(api.POST("/api/v1/nodes/{node}/cordon", { params: { path }, body: { reason } }));
    onDone();
  };
  const drain = async () => {
    const answer = await data(
      api.POST("/api/v1/nodes/{node}/drain", { params: { path }, body: { reason, all: isAll } }),
    );
    const words = [
      ...(answer.asked.length > 0 ? [`Asked to save and leave: ${answer.asked.join(", ")}.`] : []),
      ...(answer.left.length > 0 ? [`Stay until they end: ${answer.left.join(", ")}.`] : []),
    ];
    setNote(words.join(" ") || "No run is on it.");
    onDone();
  };
  const open = (which: Dialog) => {
    setReason(node.cordon_reason);
    setOpenedReason(node.cordon_reason);
    setAll(false);
    setDialog(which);
  };
  const reasonField = (
    <>
      <label>
        Reason
        <input
          class={fieldStyles["input"]}
          value={reason}
          maxLength={1024}
          placeholder="shown with the node"
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </label>
      {node.cordoned && node.cordon_reason !== openedReason && node.cordon_reason !== reason && (
        <p role="alert">
          The node was cordoned meanwhile, with the reason “{node.cordon_reason}”. Yours replaces it.
        </p>
      )}
    </>
  );
  const refusal = whyNoNodes();
  const change = { disabled: refusal !== "", title: refusal };
  const fixed = runs.filter((run) => !run.preemptible).length;
  return (
    <div class={pageStyles["bar"]}>
      {note !== "" && (
        <span class={pageStyles["quiet"]} role="status">
          {note}
        </span>
      )}
      {node.cordoned ? (
        <Button {...change} onClick={uncordon}>
          Uncordon
        </Button>
      ) : (
        <Button {...change} onClick={() => open("cordon")}>
          Cordon…
        </Button>
      )}
      <Button {...change} kind="danger" onClick={() => open("drain")}>
        Drain…
      </Button>
      {error !== null && <ErrorNotice error={error} />}
      {dialog === "cordon" && (
        <ActionDialog
          title={`Cordon ${node.id}?`}
          confirm="Cordon"
          onConfirm={cordon}
          onClose={() => setDialog(null)}
        >
          <p>No new run starts on it. Its runs continue.</p>
          {reasonField}
        </ActionDialog>
      )}
      {dialog === "drain" && (
        <ActionDialog
          title={`Drain ${node.id}?`}
          confirm="Drain"
          kind="danger"
          onConfirm={drain}
          onClose={() => setDialog(null)}
        >
          <p>
            No new run starts on it.{" "}
            {runs.length === 0
              ? "No run is on it now."
              : `Its ${formatCount(runs.length, "run is", "runs are")} asked to save a checkpoint, and to continue on other nodes.`}
          </p>
          {reasonField}
          {fixed > 0 && (
            <label class={styles["check"]}>
              <input
                type="checkbox"
                checked={isAll}
                onChange={(event) => setAll(event.currentTarget.checked)}
              />
              Also {formatCount(fixed, "run that is", "runs that are")} not preemptible
            </label>
          )}
        </ActionDialog>
      )}
    </div>
  );
}
