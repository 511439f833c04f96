/** The dialogs of what can be done to a run. */
import { useState } from "preact/hooks";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { giveCommand, isFinal, type Checkpoint, type Run } from "@/api/runs";
import { formatBytes, formatCount } from "@/text/format";
import { parseParam } from "@/text/shell";
import { ActionDialog } from "@/parts/action_dialog";
import dialog from "@/parts/action_dialog.module.css";

interface Props {
  run: Run;
  onClose: () => void;
}

export function StopDialog({ run, onClose }: Props) {
  const [waits, setWaits] = useState(false);
  const [grace, setGrace] = useState("10");
  return (
    <ActionDialog
      title={`Stop ${run.name}?`}
      confirm="Stop the run"
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        await data(
          api.POST("/api/v1/runs/{id}/stop", {
            params: { path: { id: run.id } },
            body: { at_safe_point: waits, grace_s: Number(grace) },
          }),
        );
      }}
    >
      <p>
        {run.phase === "queued"
          ? "The run leaves the queue and counts as cancelled."
          : "The processes get SIGTERM, and are killed after the time below. The log, metrics and checkpoints stay; fork the run from a checkpoint to continue it."}
      </p>
      {run.phase !== "queued" && (
        <>
          <label class={dialog["check"]}>
            <input type="checkbox" checked={waits} onChange={() => setWaits(!waits)} />
            Wait for the next safe point of the script, and save a checkpoint there
          </label>
          <label>
            Seconds until it is killed
            <input
              type="number"
              min="0"
              max="3600"
              required
              value={grace}
              onInput={(event) => setGrace(event.currentTarget.value)}
            />
          </label>
        </>
      )}
    </ActionDialog>
  );
}

export function PauseDialog({ run, onClose }: Props) {
  const [release, setRelease] = useState(false);
  return (
    <ActionDialog
      title={`Pause ${run.name}?`}
      confirm={release ? "Pause and release" : "Pause"}
      onClose={onClose}
      onConfirm={async () => {
        await giveCommand(run.id, { kind: "pause", params: {}, release });
      }}
    >
      <p>The script waits at its next safe point, until you resume it.</p>
      <label class={dialog["check"]}>
        <input type="radio" name="release" checked={!release} onChange={() => setRelease(false)} />
        Keep its resources: it continues at once when it is resumed
      </label>
      <label class={dialog["check"]}>
        <input type="radio" name="release" checked={release} onChange={() => setRelease(true)} />
        Release its resources: it saves a checkpoint, and waits in the queue again when it is resumed
      </label>
    </ActionDialog>
  );
}

export function SetDialog({ run, onClose }: Props) {
  const names = Object.keys(run.params).sort();
  const [name, setName] = useState(names[0] ?? "");
  const [text, setText] = useState(String(run.params[names[0] ?? ""] ?? ""));
  const value = parseParam(text, run.params[name]);
  return (
    <ActionDialog
      title="Set a parameter"
      confirm={`Set ${name}`}
      onClose={onClose}
      onConfirm={async () => {
        await giveCommand(run.id, { kind: "set", params: { [name]: value }, release: false });
      }}
    >
      <p>
        All processes take the value at the same safe point. Optimizers that are bound follow. Later attempts
        of the run keep it.
      </p>
      <label>
        Parameter
        <select
          name="name"
          value={name}
          onChange={(event) => {
            setName(event.currentTarget.value);
            setText(String(run.params[event.currentTarget.value] ?? ""));
          }}
        >
          {names.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      <label>
        Value
        <input name="value" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <p>
        {String(run.params[name])} → {String(value)} ({value === null ? "none" : typeof value})
      </p>
    </ActionDialog>
  );
}

export function DeleteDialog({
  run,
  onClose,
  checkpoints,
  onDeleted,
}: Props & { checkpoints: readonly Checkpoint[]; onDeleted: () => void }) {
  const freed = usePolled(
    `freed ${run.id}`,
    () =>
      data(
        api.POST("/api/v1/runs/batch", {
          body: { runs: [run.id], action: "delete", dry_run: true, force: true },
        }),
      ),
    () => null,
  ).data?.frees_bytes;
  const trials = Object.values(run.trials ?? {}).reduce((sum, count) => sum + count, 0);
  return (
    <ActionDialog
      title={`Delete ${run.name}?`}
      confirm={isFinal(run) ? "Delete for ever" : "Stop and delete"}
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        await data(
          api.DELETE("/api/v1/runs/{id}", {
            params: { path: { id: run.id }, query: { force: isFinal(run) ? 0 : 1 } },
          }),
        );
        onDeleted();
      }}
    >
      <p>
        {isFinal(run) ? "" : "The run is stopped first. "}
        Its log, metrics, media and files go, with {formatCount(checkpoints.length, "checkpoint")}
        {trials > 0 ? ` and its ${formatCount(trials, "trial")}` : ""}. This cannot be undone.
      </p>
      <p>
        {freed === undefined ? (
          "Counting what this frees…"
        ) : (
          <>
            This frees about <strong>{formatBytes(freed)}</strong>.
          </>
        )}{" "}
        What other runs use as well stays: code, datasets, environments, and checkpoints that forks start
        from.
      </p>
    </ActionDialog>
  );
}
