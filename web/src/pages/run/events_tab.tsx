import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, isFinal, isOfRun, type Command, type Run } from "@/api/runs";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { eventWords } from "./event_words";
import { Time } from "./fields";
import { paramText } from "./run_text";
import styles from "./run_page.module.css";

const POLL_MS = 3000;

interface Row {
  key: string;
  at: string;
  kind: string;
  user: string;
  step: number | null;
  detail: string;
}

/** All that happened to a run: events, commands, and the beginnings and ends of attempts. */
export function EventsTab({ run, commands }: { run: Run; commands: readonly Command[] }) {
  const events = usePolled(
    `events ${run.id} ${run.phase}`,
    () =>
      allPages<Schemas["EventsOut"]>((after) =>
        data(
          api.GET("/api/v1/runs/{id}/events", {
            params: { path: { id: run.id }, query: after === null ? {} : { after } },
          }),
        ),
      ),
    () => (isFinal(run) ? null : POLL_MS),
    { isAffected: (event) => isOfRun(event, run.id, ["alert", "event", "attempt"]), intervalMs: () => null },
  );
  if (events.data === null) {
    return events.error === null ? <Loading /> : <ErrorNotice error={events.error} />;
  }
  const rows = toRows(
    run,
    events.data.flatMap((page) => page.events),
    commands,
  );
  if (rows.length === 0) {
    return <Empty title="Nothing happened yet" />;
  }
  return (
    <div class={styles["scroll"]} tabIndex={0}>
      <table class={styles["table"]}>
        <thead>
          <tr>
            <th>Time</th>
            <th>What</th>
            <th>User</th>
            <th>Step</th>
            <th>Details</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key}>
              <td>
                <Time at={row.at} />
              </td>
              <td>{row.kind}</td>
              <td>{row.user}</td>
              <td>{row.step}</td>
              <td class={styles["detail"]}>{row.detail}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function toRows(run: Run, events: readonly Schemas["RunEvent"][], commands: readonly Command[]): Row[] {
  const rows: Row[] = [
    {
      key: "submitted",
      at: run.submitted_at,
      kind: "submitted",
      user: run.name.split("/")[0] ?? "",
      step: null,
      detail: "",
    },
    ...events
      .filter((event) => event.kind !== "control") // the commands say more
      .map((event, index) => ({
        key: `event ${index}`,
        at: event.at,
        kind: eventWords(event.kind),
        user: "",
        step: null,
        detail: event.detail,
      })),
    ...commands.map((command) => ({
      key: `command ${command.number}`,
      at: command.answered_at ?? command.created_at,
      kind: command.state === "applied" ? eventWords(command.kind) : `${command.kind} (${command.state})`,
      user: command.user,
      step: command.step,
      detail: commandDetail(command),
    })),
  ];
  for (const attempt of run.attempts ?? []) {
    const name = `attempt ${attempt.number}`;
    if (attempt.started_at) {
      const detail = attempt.nodes.length > 0 ? `on ${[...new Set(attempt.nodes)].join(", ")}` : "";
      rows.push({
        key: `${name} start`,
        at: attempt.started_at,
        kind: `${name} started`,
        user: "",
        step: attempt.resumed_from_step ?? null,
        detail,
      });
    }
    if (attempt.ended_at) {
      rows.push({
        key: `${name} end`,
        at: attempt.ended_at,
        kind: `${name} ended`,
        user: "",
        step: null,
        detail: attempt.exit?.reason ?? "",
      });
    }
  }
  return rows.sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
}

function commandDetail(command: Command): string {
  const changes = Object.entries(command.changes).map(
    ([name, [from, to]]) => `${name}: ${paramText(from)} → ${paramText(to)}`,
  );
  return changes.length > 0 ? changes.join(", ") : command.answer;
}
