/** A shell beside the script of a live run, or a Python prompt in its process. */
import { useState } from "preact/hooks";
import { useLocation, useSearch } from "wouter-preact";
import { whyNoConsole } from "@/api/rights";
import { isFinal, type Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { PromptSession } from "./prompt_session";
import { PromptView } from "./prompt_view";
import { TerminalSession } from "./terminal_session";
import { TerminalView } from "./terminal_view";
import styles from "./console.module.css";

type Kind = "shell" | "python";

// by run, kind and rank; they stay while other tabs and pages are shown
const sessions = new Map<string, TerminalSession | PromptSession>();

const LIVE = ["running", "paused", "stopping"];
const KEEPER = "hopyard.sdk.terminal_keeper"; // in the command of a run that is a shell itself

export function ConsoleTab({ run }: { run: Run }) {
  const search = new URLSearchParams(useSearch());
  const [path, navigate] = useLocation();
  const [, redraw] = useState(0);
  const replicas = run.spec.roles.flatMap((role) =>
    Array.from({ length: role.replicas ?? 1 }, (_, index) => `${role.name}-${index}`),
  );
  const kind: Kind = search.get("kind") === "python" ? "python" : "shell";
  const rank = Math.max(0, Math.min(replicas.length - 1, Number(search.get("rank")) || 0));
  const key = `${run.id} ${kind} ${rank}`;
  const session = sessions.get(key);
  const refusal = whyNoConsole(run);
  const isShell = run.spec.roles.some((role) => role.command.some((word) => word.includes(KEEPER)));
  const choose = (name: string, value: string) => {
    search.set(name, value);
    navigate(`${path}?${search}`, { replace: true });
  };
  const open = () => {
    session?.close();
    sessions.set(
      key,
      kind === "shell" ? new TerminalSession(run, rank, isShell && rank === 0) : new PromptSession(run, rank),
    );
    redraw((count) => count + 1);
  };
  const close = () => {
    session?.close();
    sessions.delete(key);
    redraw((count) => count + 1);
  };
  const isOver = session?.state.value.phase === "ended" || session?.state.value.phase === "failed";
  if (session === undefined && (refusal !== "" || run.offline || !LIVE.includes(run.phase))) {
    return (
      <Empty title="No console">
        <p>
          {refusal !== ""
            ? refusal
            : isFinal(run)
              ? "The run has ended. A console is open while it runs: fork the run to look inside again."
              : "The run has not started. Its console opens once it runs."}
        </p>
      </Empty>
    );
  }
  return (
    <div class={styles["console"]}>
      <div class={styles["bar"]}>
        <div role="group" aria-label="kind of console" class={styles["kinds"]}>
          {(["shell", "python"] as const).map((each) => (
            <button
              key={each}
              type="button"
              aria-pressed={each === kind}
              onClick={() => choose("kind", each)}
            >
              {each === "shell" ? "Shell" : "Python"}
            </button>
          ))}
        </div>
        {replicas.length > 1 && (
          <label>
            Replica{" "}
            <select value={rank} onChange={(event) => choose("rank", event.currentTarget.value)}>
              {replicas.map((name, index) => (
                <option key={name} value={index}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        )}
        {session !== undefined && (
          <span class={styles["end"]}>
            {isOver && <Button onClick={open}>Open again</Button>}
            <Button onClick={close}>{isOver ? "Close" : "End it"}</Button>
          </span>
        )}
      </div>
      {session === undefined ? (
        <Empty title={kind === "shell" ? "A shell beside the script" : "Python in the process of the script"}>
          <p>
            {kind === "shell"
              ? "It has the folder, variables, environment, data and limits of the run. It ends with this page, with the session of the browser, and with the run."
              : "It sees the variables of the code with hop.loop, the bound objects and `p`. Statements are evaluated at the safe points of the script, and training waits meanwhile. An assigned parameter, as in `p.lr = 0.01`, is set in all processes."}
          </p>
          <Button kind="primary" onClick={open}>
            {kind === "shell" ? "Open a shell" : "Open a prompt"}
          </Button>
        </Empty>
      ) : session.state.value.phase === "failed" ? (
        <ErrorNotice error={session.state.value.error} />
      ) : (
        <>
          {session instanceof TerminalSession ? (
            <TerminalView key={key} session={session} />
          ) : (
            <PromptView key={key} session={session} />
          )}
          {session.state.value.phase === "opening" && <Loading rows={1} />}
          <p role="status" class={styles["state"]}>
            {session.state.value.phase === "ended"
              ? session.state.value.text
              : session instanceof TerminalSession
                ? "F6 leaves the terminal with the keyboard."
                : ""}
          </p>
        </>
      )}
    </div>
  );
}
