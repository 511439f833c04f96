import { useState } from "preact/hooks";
import { api, data } from "@/api/client";
import { whyNoChange } from "@/api/rights";
import { readManifest, type Checkpoint, type Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice } from "@/parts/notices";
import { formatBytes, formatCount, formatNumber } from "@/text/format";
import { tarParts, type TarEntry } from "@/text/tar";
import { ActionDialog } from "@/parts/action_dialog";
import { saveFile, Time } from "./fields";
import styles from "./run_page.module.css";

const MAX_DOWNLOAD_BYTES = 1 << 30;

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
  const refusal = whyNoChange(run);
  const change = { disabled: refusal !== "", title: refusal };
  const ofStep = checkpoints.filter((each) => each.step === deleted);
  return (
    <>
      {error !== null && <ErrorNotice error={error} />}
      <p class={styles["quiet"]}>
        {formatCount(checkpoints.length, "checkpoint")}, {formatBytes(total)}; parts that they share are
        stored once. The step is the number of completed iterations, unless the script names one: 10 follows
        the step 9 of a curve.
      </p>
      <div class={styles["scroll"]} tabIndex={0}>
        <table class={`${styles["table"]} ${styles["cards"]}`}>
          <thead>
            <tr>
              <th>Step</th>
              <th>Size</th>
              <th>Saved</th>
              <th>Metrics</th>
              <th>Kept</th>
              <th>
                <span class={styles["spoken"]}>Actions</span>
              </th>
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
                    <input type="checkbox" checked={each.kept} {...change} onChange={() => keep(each)} />{" "}
                    {each.kept ? "kept" : "keep"}
                  </label>
                  {each.kept_for && each.kept_for.length > 0 && (
                    <div class={styles["quiet"]}>{each.kept_for.join(", ")}</div>
                  )}
                </td>
                <td>
                  <Download run={run} checkpoint={each} onError={setError} />
                  <Button {...change} kind="quiet" onClick={() => setDeleted(each.step)}>
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

/** Saves the file of a checkpoint, or its files as one archive. */
function Download({
  run,
  checkpoint,
  onError,
}: {
  run: Run;
  checkpoint: Checkpoint;
  onError: (error: unknown) => void;
}) {
  const [isBusy, setBusy] = useState(false);
  if (checkpoint.size_bytes > MAX_DOWNLOAD_BYTES) {
    return (
      <code>
        hop pull {run.name}@{checkpoint.step}
      </code>
    );
  }
  const save = async () => {
    const files = await readManifest(checkpoint.manifest);
    const only = files.length === 1 ? files[0] : undefined;
    if (only) {
      saveFile(only.path.split("/").at(-1) ?? only.path, await only.read());
      return;
    }
    const folder = `${run.name.split("/").slice(1).join("-")}-step-${checkpoint.step}`;
    const entries: TarEntry[] = [];
    for (const file of files) {
      entries.push({ path: `${folder}/${file.path}`, bytes: await file.read() });
    }
    saveFile(`${folder}.tar`, tarParts(entries, Date.parse(checkpoint.created_at) / 1000));
  };
  return (
    <Button
      kind="quiet"
      disabled={isBusy || checkpoint.damaged}
      aria-label={`download the checkpoint of step ${checkpoint.step}`}
      onClick={() => {
        onError(null);
        setBusy(true);
        save()
          .catch(onError)
          .finally(() => setBusy(false));
      }}
    >
      {isBusy ? "Downloading…" : "Download"}
    </Button>
  );
}
