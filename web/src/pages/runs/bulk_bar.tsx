import { useEffect, useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { ErrorNotice } from "@/parts/notices";
import { formatCount } from "@/text/format";
import { affected, consequences, sendBatch, type Action, type Batch } from "./batch";
import styles from "./bulk_bar.module.css";
import type { Run } from "./columns";

const TITLES: Partial<Record<Action, string>> = { stop: "Stop", archive: "Archive", delete: "Delete" };

/** Asks before an action on runs: says what it does, and afterwards what was refused. */
export function BatchDialog({
  action,
  runs,
  onClose,
  onDone,
}: {
  action: Action;
  runs: readonly Run[];
  onClose: () => void;
  onDone: () => void;
}) {
  const [chosen] = useState(runs); // the table changes while the dialog is open
  const targets = affected(action, chosen);
  const [preview, setPreview] = useState<Batch | null>(null);
  const [result, setResult] = useState<Batch | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const title = TITLES[action] ?? action;
  useEffect(() => {
    if (action === "delete" && targets.length > 0) {
      sendBatch(
        targets.map((run) => run.id),
        "delete",
        { dry_run: true },
      )
        .then(setPreview)
        .catch(setError);
    }
  }, []);

  const apply = () => {
    setBusy(true);
    sendBatch(
      targets.map((run) => run.id),
      action,
    )
      .then((done) => {
        onDone();
        if (done.results.every((one) => one.done)) {
          onClose();
        } else {
          setResult(done);
        }
      })
      .catch(setError)
      .finally(() => setBusy(false));
  };
  const refused = result?.results.filter((one) => !one.done) ?? [];
  return (
    <Dialog
      title={`${title} ${chosen.length === 1 ? (chosen[0]?.name ?? "") : formatCount(chosen.length, "run")}`}
      isOpen
      onClose={onClose}
    >
      {result === null ? (
        <div class={styles["text"]}>
          {consequences(action, chosen, targets.length === 0 ? { results: [], frees_bytes: 0 } : preview).map(
            (sentence) => (
              <p key={sentence}>{sentence}</p>
            ),
          )}
        </div>
      ) : (
        <div class={styles["text"]} role="alert">
          <p>
            {result.results.length - refused.length} of {formatCount(result.results.length, "run")} done. The
            others were refused:
          </p>
          <ul>
            {refused.map((one) => (
              <li key={one.id}>
                <b>{one.name ?? one.id}</b>: {one.error?.message}
              </li>
            ))}
          </ul>
        </div>
      )}
      {error !== null && <ErrorNotice error={error} />}
      <DialogButtons>
        <Button onClick={onClose}>{result === null ? "Cancel" : "Close"}</Button>
        {result === null && (
          <Button
            kind={action === "archive" ? "primary" : "danger"}
            disabled={isBusy || targets.length === 0}
            onClick={apply}
          >
            {isBusy ? "Working…" : `${title} ${formatCount(targets.length, "run")}`}
          </Button>
        )}
      </DialogButtons>
    </Dialog>
  );
}

/** What can be done with the selected runs, at the bottom of the table. */
export function BulkBar({
  count,
  refusal,
  isArchived,
  onCompare,
  onAction,
  onClear,
}: {
  count: number;
  refusal: string; // why none of them can be changed; "" if some can
  isArchived: boolean;
  onCompare: () => void;
  onAction: (action: Action) => void;
  onClear: () => void;
}) {
  const change = { disabled: refusal !== "", title: refusal };
  return (
    <div class={styles["bar"]} role="toolbar" aria-label="selected runs">
      <b>{count} selected</b>
      <Button kind="primary" disabled={count < 2} onClick={onCompare}>
        Compare
      </Button>
      <Button {...change} onClick={() => onAction("stop")}>
        Stop
      </Button>
      {isArchived ? (
        <Button {...change} onClick={() => onAction("unarchive")}>
          Unarchive
        </Button>
      ) : (
        <Button {...change} onClick={() => onAction("archive")}>
          Archive
        </Button>
      )}
      <Button {...change} kind="danger" onClick={() => onAction("delete")}>
        Delete
      </Button>
      <Button kind="quiet" onClick={onClear}>
        Clear
      </Button>
    </div>
  );
}
