import { useState } from "preact/hooks";
import { api, ApiError, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import type { Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice, Loading } from "@/parts/notices";
import { PhaseBadge } from "@/parts/phase";
import styles from "./report.module.css";
import { runLabel } from "./report_runs";

const LIMIT = 50;
const MAX_RUNS = 100; // of a block
const POLL_MS = 10_000;

/** Chooses the runs of a block, by the query language of the table of runs or a part of their name. */
export function RunsDialog({
  chosen,
  onChange,
  onClose,
}: {
  chosen: readonly Run[];
  onChange: (ids: string[]) => void;
  onClose: () => void;
}) {
  const [text, setText] = useState("");
  const [runs, setRuns] = useState(chosen);
  const query = {
    limit: LIMIT,
    trials: 0,
    ...(text.trim() !== "" && (/[<>=~]/.test(text) ? { where: text } : { text: text.trim() })),
  };
  const { data: page, error } = usePolled(
    `report choice ${text}`,
    () => data(api.GET("/api/v1/runs", { params: { query } })),
    () => POLL_MS,
  );
  const ids = new Set(runs.map((run) => run.id));
  const found = (page?.runs ?? []).filter((run) => !ids.has(run.id));
  const row = (run: Run) => (
    <li key={run.id}>
      <label>
        <input
          type="checkbox"
          checked={ids.has(run.id)}
          disabled={!ids.has(run.id) && runs.length >= MAX_RUNS}
          onChange={() =>
            setRuns(ids.has(run.id) ? runs.filter((each) => each.id !== run.id) : [...runs, run])
          }
        />
        <span>{runLabel(run)}</span>
        <small>{run.name}</small>
        <PhaseBadge phase={run.phase} />
      </label>
    </li>
  );
  return (
    <Dialog title="Runs of this block" isOpen isWide onClose={onClose}>
      <label class={fieldStyles["label"]}>
        Find runs
        <input
          type="search"
          class={fieldStyles["input"]}
          placeholder="a name, or val_acc > 0.9 and params.lr < 1e-3"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      {error instanceof ApiError && error.status === 400 && <p role="alert">{error.message}</p>}
      <ul class={styles["runs"]} aria-label="runs">
        {runs.map(row)}
        {found.map(row)}
      </ul>
      {page === null && error === null && <Loading rows={4} />}
      {page === null && error !== null && !(error instanceof ApiError && error.status === 400) && (
        <ErrorNotice error={error} />
      )}
      {page !== null && found.length === 0 && runs.length === 0 && <p>No run matches.</p>}
      <DialogButtons>
        <span class={styles["quiet"]}>
          {runs.length} chosen{runs.length >= MAX_RUNS ? ", which is the limit" : ""}
        </span>
        <Button onClick={onClose}>Cancel</Button>
        <Button
          kind="primary"
          onClick={() => {
            onChange(runs.map((run) => run.id));
            onClose();
          }}
        >
          Show these runs
        </Button>
      </DialogButtons>
    </Dialog>
  );
}
