import { useEffect, useState } from "preact/hooks";
import { api, data } from "@/api/client";
import { Button } from "@/parts/button";
import { ConflictNotice } from "@/parts/conflict";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice, Loading } from "@/parts/notices";
import type { Run } from "./columns";
import { changeOf, saveText, textOf, type TextChange } from "./run_text";
import { formatTags, parseTags } from "./tags";

/** Changes name, tags and note of a run. A listing cuts long tags, so the run is read first. What another user changes
 *  while the dialog is open stays, or the dialog asks. */
export function EditDialog({
  run,
  onClose,
  onDone,
}: {
  run: Pick<Run, "id" | "name">;
  onClose: () => void;
  onDone: () => void;
}) {
  const [whole, setWhole] = useState<Run | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    data(api.GET("/api/v1/runs/{id}", { params: { path: { id: run.id } } }))
      .then(setWhole)
      .catch(setError);
  }, []);
  return (
    <Dialog title={`Edit ${run.name}`} isOpen onClose={onClose}>
      {error !== null && <ErrorNotice error={error} />}
      {whole !== null ? (
        <EditForm run={whole} onClose={onClose} onDone={onDone} />
      ) : (
        error === null && <Loading rows={5} />
      )}
    </Dialog>
  );
}

function EditForm({ run, onClose, onDone }: { run: Run; onClose: () => void; onDone: () => void }) {
  const [opened, setOpened] = useState(run);
  const [label, setLabel] = useState(run.spec.label ?? "");
  const [tags, setTags] = useState(formatTags(run.spec.tags ?? {}));
  const [note, setNote] = useState(run.note);
  const [error, setError] = useState<unknown>(null);
  const [conflict, setConflict] = useState<{ change: TextChange; theirs: Run } | null>(null);
  const [isBusy, setBusy] = useState(false);
  const save = (change: TextChange, over: Run) => {
    setBusy(true);
    setError(null);
    setConflict(null);
    saveText(run.id, change, textOf(over))
      .then((other) => {
        if (other === null) {
          onDone();
          onClose();
        } else {
          setConflict({ change, theirs: other.theirs });
        }
      })
      .catch(setError)
      .finally(() => setBusy(false));
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save(changeOf(textOf(opened), { label, note, tags: parseTags(tags) }), opened);
      }}
      style={{ display: "grid", gap: "var(--space-4)" }}
    >
      <label class={fieldStyles["label"]}>
        Name
        <input
          class={fieldStyles["input"]}
          value={label}
          onInput={(event) => setLabel(event.currentTarget.value)}
        />
      </label>
      <label class={fieldStyles["label"]}>
        Tags
        <input
          class={fieldStyles["input"]}
          placeholder="team=vision baseline"
          value={tags}
          onInput={(event) => setTags(event.currentTarget.value)}
        />
      </label>
      <label class={fieldStyles["label"]}>
        Note
        <textarea
          class={fieldStyles["input"]}
          rows={4}
          maxLength={4096}
          value={note}
          onInput={(event) => setNote(event.currentTarget.value)}
        />
      </label>
      {error !== null && <ErrorNotice error={error} />}
      {conflict !== null && (
        <ConflictNotice
          text="Another user or browser changed this run meanwhile."
          load="Load theirs"
          keep="Keep mine"
          onLoad={() => {
            const { theirs } = conflict;
            setOpened(theirs);
            setLabel(theirs.spec.label ?? "");
            setTags(formatTags(theirs.spec.tags ?? {}));
            setNote(theirs.note);
            setConflict(null);
          }}
          onKeep={() => save(conflict.change, conflict.theirs)}
        />
      )}
      <DialogButtons>
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="primary" type="submit" disabled={isBusy}>
          Save
        </Button>
      </DialogButtons>
    </form>
  );
}
