import { useState } from "preact/hooks";
import { api, data } from "@/api/client";
import type { Checkpoint, Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice } from "@/parts/notices";
import { formatBytes, formatNumber } from "@/text/format";
import { ActionDialog } from "./action_dialog";
import { Time } from "./fields";
import styles from "./run_page.module.css";

/** The checkpoints of a run by step, newest first. */
export function CheckpointsTab({
  run,
  checkpoints,
  reload,
}: {
  run: Run;
  checkpoints: readonly Checkpoint[];
  reload: () => void;
}) {
  const [deleted, setDeleted] = useState<number | null>(null);
  const [error, setError] = useState<unknown>(null);
  if (checkpoints.length === 0) {
    return <Empty title="No checkpoints" command="hop.bind(model=model, optimizer=optimizer)" />;
  }
  const total = checkpoints.reduce((sum, each) => sum + each.size_bytes, 0);
  const keep = (checkpoint: Checkpoint) => {
    setError(null);
    data(
      api.POST("/api/v1/runs/{id}/checkpoints/{step}/keep", {
        params: {
          path: { id: run.id, step: String(checkpoint.step) },
          query: { kept: checkpoint.kept ? 0 : 1 },
        },
      }),
    )
      .then(reload)
      .catch(setError);
  };
  const ofStep = checkpoints.filter((each) => each.step === deleted);
  return (
    <>
      {error !== null && <ErrorNotice error={error} />}
      <p class={styles["quiet"]}>
        {checkpoints.length} {checkpoints.length === 1 ? "checkpoint" : "checkpoints"}, {formatBytes(total)};
        parts that they share are stored once
      </p>
      <div class={styles["scroll"]} tabIndex={0}>
        <table class={styles["table"]}>
          <thead>
            <tr>
              <th>Step</th>
              <th>Size</th>
              <th>Saved</th>
              <th>Metrics</th>
              <th>Kept</th>
              <th aria-label="actions" />
            </tr>
          </thead>
          <tbody>
            {[...checkpoints].reverse().map((each) => (
              <tr key={`${each.attempt} ${each.rank} ${each.step} ${each.path}`}>
                <td>
                  {each.step}
                  {each.best && " · best"}
                  {each.damaged && " · damaged"}
                  {each.path !== "" && <div class={styles["quiet"]}>{each.path}</div>}
                </td>
                <td>{formatBytes(each.size_bytes)}</td>
                <td>
                  <Time at={each.created_at} />
                </td>
                <td>
                  {Object.entries(each.metrics)
                    .slice(0, 4)
                    .map(([name, value]) => `${name} ${formatNumber(value)}`)
                    .join(", ")}
                </td>
                <td>
                  <label>
                    <input type="checkbox" checked={each.kept} onChange={() => keep(each)} />{" "}
                    {each.kept ? "kept" : "keep"}
                  </label>
                  {each.kept_for && each.kept_for.length > 0 && (
                    <div class={styles["quiet"]}>{each.kept_for.join(", ")}</div>
                  )}
                </td>
                <td>
                  <Button kind="quiet" onClick={() => setDeleted(each.step)}>
                    Delete…
                  </Button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {deleted !== null && (
        <ActionDialog
          title={`Delete the checkpoint of step ${deleted}?`}
          confirm="Delete"
          kind="danger"
          onClose={() => {
            setDeleted(null);
            reload();
          }}
          onConfirm={async () => {
            await data(
              api.DELETE("/api/v1/runs/{id}/checkpoints/{step}", {
                params: { path: { id: run.id, step: String(deleted) } },
              }),
            );
          }}
        >
          <p>
            It frees up to {formatBytes(ofStep.reduce((sum, each) => sum + each.size_bytes, 0))}; parts that
            other checkpoints share stay. Nothing can start from it any more.
          </p>
        </ActionDialog>
      )}
    </>
  );
}
