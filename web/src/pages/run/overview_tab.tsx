import { usePolled } from "@/api/polling";
import { api, data } from "@/api/client";
import { isFinal, isOfRun, type Command, type Run } from "@/api/runs";
import { Empty } from "@/parts/notices";
import { formatDuration, formatNumber } from "@/text/format";
import { commandText } from "@/text/shell";
import { ExitNotice } from "./exit_notice";
import { CopyButton, Section, Time } from "./fields";
import { paramText } from "./run_text";
import styles from "./run_page.module.css";

const POLL_MS = 2000;

/** The commands that were given to the run, with the changes that they made. */
export function useCommands(run: Run): readonly Command[] {
  return (
    usePolled(
      `commands ${run.id} ${isFinal(run)}`,
      () => data(api.GET("/api/v1/runs/{id}/commands", { params: { path: { id: run.id } } })),
      () => (isFinal(run) ? null : POLL_MS),
      { isAffected: (event) => isOfRun(event, run.id, ["command"]), intervalMs: () => null },
    ).data?.commands ?? []
  );
}

/** What came out, what went in, and why it ended. */
export function OverviewTab({ run, commands }: { run: Run; commands: readonly Command[] }) {
  const values = { ...run.latest };
  const summary = Object.entries(run.summary);
  const params = Object.entries(run.params).sort(([a], [b]) => (a < b ? -1 : 1));
  const tags = Object.entries(run.spec.tags ?? {});
  return (
    <div class={styles["overview"]}>
      {run.phase !== "failed" && <ExitNotice run={run} />}
      <Section title="Summary">
        {summary.length === 0 && Object.keys(values).length === 0 && (
          <Empty
            title={isFinal(run) ? "No values" : "No values yet"}
            command="hop.log(loss=loss, step=step)"
          />
        )}
        <table class={styles["values"]}>
          <tbody>
            {summary.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{formatNumber(value)}</td>
                <td class={styles["quiet"]}>summary</td>
              </tr>
            ))}
            {Object.entries(values)
              .filter(([name]) => !Object.hasOwn(run.summary, name))
              .sort(([a], [b]) => (a < b ? -1 : 1))
              .map(([name, pair]) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>{formatNumber((pair as [number, number | string])[1])}</td>
                  <td class={styles["quiet"]}>step {(pair as [number, number | string])[0]}</td>
                </tr>
              ))}
          </tbody>
        </table>
      </Section>
      <Section title="Parameters">
        {params.length === 0 && <Empty title="No parameters" command="hop run main.py -p lr=0.1" />}
        <table class={styles["values"]}>
          <tbody>
            {params.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>
                  {paramText(value)}
                  <Changes name={name} commands={commands} />
                </td>
                <td class={styles["quiet"]}>
                  {run.unread_params?.includes(name) && "not read by the script"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Section>
      {(run.note !== "" || tags.length > 0) && (
        <Section title="Note and tags">
          {run.note !== "" && <p class={styles["text"]}>{run.note}</p>}
          {tags.length > 0 && (
            <ul class={styles["tags"]}>
              {tags.map(([key, value]) => (
                <li key={key}>
                  {key}={value}
                </li>
              ))}
            </ul>
          )}
        </Section>
      )}
      <Section title="How it is run">
        <table class={styles["values"]}>
          <tbody>
            {run.spec.roles.map((role) => (
              <tr key={role.name}>
                <th scope="row">{run.spec.roles.length > 1 ? role.name : "command"}</th>
                <td>
                  <code>{commandText(role.command)}</code> <CopyButton text={commandText(role.command)} />
                </td>
              </tr>
            ))}
            {row("queue", run.spec.queue)}
            {row("priority", run.spec.priority)}
            {row("time limit", run.spec.time_limit_s && formatDuration(run.spec.time_limit_s))}
            {row("python", run.spec.environment?.python)}
            {row(
              "image",
              run.spec.roles.map((role) => role.image).find((image) => image !== ""),
            )}
            {row(
              "commit",
              run.spec.git && `${run.spec.git.commit}${run.spec.git.dirty ? " with changes" : ""}`,
            )}
            {row("project", run.spec.project)}
            {row("id", run.id)}
          </tbody>
        </table>
      </Section>
      <Attempts run={run} />
    </div>
  );
}

function row(label: string, value: string | number | null | undefined) {
  return value === null || value === undefined || value === "" ? null : (
    <tr key={label}>
      <th scope="row">{label}</th>
      <td>{value}</td>
    </tr>
  );
}

function Changes({ name, commands }: { name: string; commands: readonly Command[] }) {
  const changes = commands.filter((command) => Object.hasOwn(command.changes, name));
  return changes.length === 0 ? null : (
    <ul class={styles["changes"]}>
      {changes.map((command) => {
        const [from, to] = command.changes[name] ?? [null, null];
        return (
          <li key={command.number}>
            {paramText(from)} → {paramText(to)}
            {command.step !== null && ` at step ${command.step}`}, by {command.user},{" "}
            <Time at={command.answered_at ?? command.created_at} />
          </li>
        );
      })}
    </ul>
  );
}

function Attempts({ run }: { run: Run }) {
  const attempts = run.attempts ?? [];
  if (attempts.length === 0) {
    return null;
  }
  return (
    <Section title="Attempts">
      <div class={styles["scroll"]} tabIndex={0}>
        <table class={styles["table"]}>
          <thead>
            <tr>
              <th>Attempt</th>
              <th>Nodes</th>
              <th>Placed</th>
              <th>Started</th>
              <th>Ended</th>
              <th>How it ended</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map((attempt) => (
              <tr key={attempt.id}>
                <td>
                  {attempt.number}
                  {typeof attempt.resumed_from_step === "number" &&
                    `, from step ${attempt.resumed_from_step}`}
                </td>
                <td>{[...new Set(attempt.nodes)].join(", ")}</td>
                <td>
                  <Time at={attempt.placed_at} />
                </td>
                <td>{attempt.started_at && <Time at={attempt.started_at} />}</td>
                <td>{attempt.ended_at && <Time at={attempt.ended_at} />}</td>
                <td>{attempt.preempt_reason || attempt.exit?.reason || attempt.phase}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}
