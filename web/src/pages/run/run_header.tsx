import { Link } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { isFinal, isOfRun, type Checkpoint, type Run } from "@/api/runs";
import { Name } from "@/parts/name";
import { PhaseBadge } from "@/parts/phase";
import { formatBytes, formatDuration, formatNumber } from "@/text/format";
import { reproduceCommand } from "@/text/shell";
import { Actions } from "./actions";
import { CopyButton, Field, Time } from "./fields";
import { remainingSeconds, resourcesText, runSeconds } from "./run_text";
import styles from "./run_page.module.css";

const WHY_MS = 3000;
const MAX_FORKS = 5;

/** What one has to know about a run at a glance, and the actions. */
export function RunHeader({
  run,
  checkpoints,
  reload,
}: {
  run: Run;
  checkpoints: readonly Checkpoint[];
  reload: () => void;
}) {
  const now = serverNow();
  const command = reproduceCommand(run);
  const seconds = runSeconds(run, now);
  return (
    <header class={styles["header"]}>
      <div class={styles["top"]}>
        <div class={styles["names"]}>
          <h1>
            <Name text={run.spec.label || run.name} />
          </h1>
          <PhaseBadge phase={run.phase} />
          {run.starred && <span title="starred">★</span>}
          {run.archived && <span class={styles["quiet"]}>archived</span>}
          {run.stop_requested && !isFinal(run) && (
            <span class={styles["quiet"]}>stopping{run.stopped_by ? `, by ${run.stopped_by}` : ""}</span>
          )}
        </div>
        <Actions run={run} checkpoints={checkpoints} reload={reload} />
      </div>
      <Progress run={run} now={now} />
      {run.phase === "queued" && <Why run={run} />}
      <dl class={styles["fields"]}>
        <Field label="Run">
          <span>{run.name}</span>
        </Field>
        <Field label="User">{run.name.split("/")[0]}</Field>
        <Field label="Resources">{resourcesText(run)}</Field>
        {run.spec.datasets && run.spec.datasets.length > 0 && (
          <Field label="Dataset">
            {run.spec.datasets.map((dataset, index, all) => (
              <span key={dataset.name}>
                <Link href={`/datasets/${encodeURIComponent(dataset.name)}`}>
                  {dataset.name}:{dataset.version || "newest"}
                </Link>
                {index < all.length - 1 && ", "}
              </span>
            ))}
          </Field>
        )}
        <Field label="Submitted">
          <Time at={run.submitted_at} />
        </Field>
        {run.started_at !== null && (
          <Field label="Started">
            <Time at={run.started_at} />
          </Field>
        )}
        {run.ended_at !== null && (
          <Field label="Ended">
            <Time at={run.ended_at} />
          </Field>
        )}
        {seconds !== null && <Field label="Duration">{formatDuration(seconds)}</Field>}
        <Field label="Attempts">
          {run.attempts?.length ?? 0}
          {run.preemptions > 0 && `, ${run.preemptions} preempted`}
        </Field>
        {run.attempt !== null && run.attempt.nodes.length > 0 && (
          <Field label="Nodes">{[...new Set(run.attempt.nodes)].join(", ")}</Field>
        )}
        <Lineage run={run} />
        <Field label="Reproduce">
          <code class={styles["command"]}>{command}</code>
          <CopyButton text={command} />
        </Field>
      </dl>
    </header>
  );
}

function Progress({ run, now }: { run: Run; now: number }) {
  const progress = run.progress;
  if (!progress || isFinal(run)) {
    return null;
  }
  const remaining = remainingSeconds(run, now);
  const share = progress.total ? Math.min(1, progress.done / progress.total) : null;
  return (
    <div class={styles["progress"]}>
      {share !== null && <progress value={share} max={1} aria-label="progress" />}
      <span>
        {progress.unit} {formatNumber(progress.done)}
        {progress.total !== null && ` of ${formatNumber(progress.total)}`}
        {remaining !== null && ` · about ${formatDuration(remaining)} left`}
      </span>
    </div>
  );
}

/** Why a run waits and when it starts, in the words of `hop why`. */
function Why({ run }: { run: Run }) {
  const why = usePolled(
    `why ${run.id}`,
    () => data(api.GET("/api/v1/runs/{id}/why", { params: { path: { id: run.id } } })),
    () => WHY_MS,
    // reasons and expected starts change with all that runs and waits
    { isAffected: (event) => isOfRun(event, run.id) || event.kind === "queues", intervalMs: () => WHY_MS },
  ).data;
  if (why === null) {
    return null;
  }
  return (
    <section class={styles["why"]} aria-label="why the run waits">
      <p>
        <strong>
          Waits in queue {why.queue}
          {typeof why.position === "number" && `, position ${why.position} of ${why.waiting}`}
        </strong>
        {why.expected && (
          <>
            , expected to start between <Time at={why.expected.low_at} /> and{" "}
            <Time at={why.expected.high_at} />
          </>
        )}
        {why.promised_at && (
          <>
            , promised by <Time at={why.promised_at} />
          </>
        )}
      </p>
      {[why.detail, why.unknown, why.late].map((text) => text && <p key={text}>{text}</p>)}
      {why.blocked_by && why.blocked_by.length > 0 && (
        <p>
          Blocked by{" "}
          {why.blocked_by.map((each, index) => (
            <span key={each.id}>
              {index > 0 && ", "}
              {each.kind === "run" ? (
                <Link href={`/runs/${each.id}`}>{each.name}</Link>
              ) : (
                `${each.kind} ${each.name}`
              )}
              {each.until && (
                <>
                  {" "}
                  until <Time at={each.until} />
                </>
              )}
            </span>
          ))}
        </p>
      )}
      {why.what_if && why.what_if.length > 0 && (
        <ul>
          {why.what_if.map((each) => (
            <li key={each.text}>it would start {each.text}</li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Lineage({ run }: { run: Run }) {
  const forks = usePolled(
    `forks ${run.id}`,
    () =>
      data(
        api.GET("/api/v1/runs", {
          params: { query: { forked_from: [run.id], limit: MAX_FORKS, trials: 0 } },
        }),
      ),
    () => null,
  ).data;
  const from = run.spec.forked_from;
  return (
    <>
      {from !== null && (
        <Field label="Forked from">
          {run.forked_from_name ? (
            <Link href={`/runs/${run.forked_from_name}`}>{run.forked_from_name}</Link>
          ) : (
            `${from} (removed)`
          )}
          {run.spec.resume && `, step ${run.spec.resume.step}`}
        </Field>
      )}
      {run.spec.parent && (
        <Field label="Trial of">
          <Link href={`/runs/${run.spec.parent}`}>its study</Link>
        </Field>
      )}
      {forks !== null && forks.runs.length > 0 && (
        <Field label="Forks">
          {forks.runs.map((fork, index) => (
            <span key={fork.id}>
              <Link href={`/runs/${fork.name}`}>{fork.name}</Link>
              {index < forks.runs.length - 1 && ", "}
            </span>
          ))}
          {forks.next !== null && " and more"}
        </Field>
      )}
      {run.run_folder_bytes > 0 && <Field label="Kept files">{formatBytes(run.run_folder_bytes)}</Field>}
    </>
  );
}
