import { useState } from "preact/hooks";
import { Menu } from "@base-ui/react/menu";
import { useLocation } from "wouter-preact";
import { api, ApiError, data } from "@/api/client";
import { whyNoChange, whyNoFork, whyNoSubmit } from "@/api/rights";
import { giveCommand, isFinal, type Checkpoint, type Run } from "@/api/runs";
import { EditDialog } from "@/pages/runs/edit_dialog";
import { AgainDialog } from "@/pages/studies/study_actions";
import { Button } from "@/parts/button";
import { DeleteDialog, PauseDialog, SetDialog, StopDialog } from "./dialogs";
import { ErrorNotice } from "@/parts/notices";
import styles from "./run_page.module.css";

type Dialog = "stop" | "pause" | "set" | "again" | "delete" | "note";

/** What can be done to a run in its phase. */
export function Actions({
  run,
  checkpoints,
  reload,
}: {
  run: Run;
  checkpoints: readonly Checkpoint[];
  reload: () => void;
}) {
  const [open, setOpen] = useState<Dialog | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [, navigate] = useLocation();
  const close = () => {
    setOpen(null);
    reload();
  };
  const attempt = (action: Promise<unknown>) => {
    setError(null);
    action.then(reload).catch(setError);
  };
  const change = async (action: "star" | "unstar" | "archive" | "unarchive") => {
    const { results } = await data(api.POST("/api/v1/runs/batch", { body: { runs: [run.id], action } }));
    const refusal = results[0]?.error;
    if (refusal) {
      throw new ApiError(409, refusal.code, refusal.message, refusal.hints);
    }
  };
  const isEnded = isFinal(run);
  const refusal = whyNoChange(run);
  const forkRefusal = whyNoFork(run);
  const mayChange = refusal === "";
  const isLive = mayChange && !isEnded && !run.offline && run.phase !== "queued" && !run.stop_requested;
  const isHeld = mayChange && run.phase === "queued" && run.held_by !== null;
  const openPort = (port: string) => {
    // opened at once, as a browser opens no window after a wait
    const tab = window.open("about:blank", "_blank");
    attempt(
      data(api.POST("/api/v1/runs/{id}/ports", { params: { path: { id: run.id } }, body: { port, rank: 0 } }))
        .then(({ link, path }) => {
          if (link === "") {
            throw new Error(`a browser reaches the port only by \`hop port ${run.name} ${port}\` (${path})`);
          }
          if (tab) {
            tab.opener = null;
            tab.location.href = link;
          }
        })
        .catch((failure: unknown) => {
          tab?.close();
          throw failure;
        }),
    );
  };
  const props = { run, onClose: close };
  return (
    <div class={styles["actions"]}>
      {!mayChange && (
        <span class={styles["quiet"]} title={refusal}>
          {whyNoSubmit() === "" ? "View only" : "This session may only read"}
        </span>
      )}
      {Object.keys((isLive && run.spec.ports) || {}).map((port) => (
        <Button key={port} onClick={() => openPort(port)}>
          Open {port} ↗
        </Button>
      ))}
      {isLive && run.phase === "running" && <Button onClick={() => setOpen("pause")}>Pause</Button>}
      {((mayChange && run.phase === "paused") || isHeld) && (
        <Button
          kind="primary"
          onClick={() => attempt(giveCommand(run.id, { kind: "resume", params: {}, release: false }))}
        >
          Resume
        </Button>
      )}
      {isLive && <Button onClick={() => setOpen("set")}>Set a parameter</Button>}
      <Button
        disabled={forkRefusal !== ""}
        title={forkRefusal}
        onClick={() => (run.spec.study === null ? navigate(`/new?from=${run.id}`) : setOpen("again"))}
      >
        Fork
      </Button>
      {mayChange && !isEnded && !run.stop_requested && (
        <Button kind="danger" onClick={() => setOpen("stop")}>
          Stop
        </Button>
      )}
      <Menu.Root>
        <Menu.Trigger className={styles["more"] ?? ""} aria-label="more actions">
          ⋯
        </Menu.Trigger>
        <Menu.Portal>
          <Menu.Positioner align="end" sideOffset={4} className={styles["positioner"] ?? ""}>
            <Menu.Popup className={styles["menu"] ?? ""}>
              {!mayChange && <p class={styles["refusal"]}>{refusal}</p>}
              {mayChange && <Menu.Item onClick={() => setOpen("note")}>Edit name, note and tags</Menu.Item>}
              {mayChange && run.phase === "queued" && !isHeld && (
                <Menu.Item
                  onClick={() => attempt(giveCommand(run.id, { kind: "pause", params: {}, release: false }))}
                >
                  Hold in the queue
                </Menu.Item>
              )}
              {whyNoSubmit() === "" && (
                <Menu.Item onClick={() => attempt(change(run.starred ? "unstar" : "star"))}>
                  {run.starred ? "Remove the star" : "Star"}
                </Menu.Item>
              )}
              {mayChange && isEnded && (
                <Menu.Item onClick={() => attempt(change(run.archived ? "unarchive" : "archive"))}>
                  {run.archived ? "Take out of the archive" : "Archive: leave it out of the table"}
                </Menu.Item>
              )}
              {mayChange && <Menu.Item onClick={() => setOpen("delete")}>Delete…</Menu.Item>}
            </Menu.Popup>
          </Menu.Positioner>
        </Menu.Portal>
      </Menu.Root>
      {open === "stop" && <StopDialog {...props} />}
      {open === "pause" && <PauseDialog {...props} />}
      {open === "set" && <SetDialog {...props} />}
      {open === "note" && <EditDialog {...props} onDone={reload} />}
      {open === "again" && <AgainDialog {...props} onStarted={(name) => navigate(`/studies/${name}`)} />}
      {open === "delete" && (
        <DeleteDialog {...props} checkpoints={checkpoints} onDeleted={() => navigate("/runs")} />
      )}
      {error !== null && <ErrorNotice error={error} />}
    </div>
  );
}
