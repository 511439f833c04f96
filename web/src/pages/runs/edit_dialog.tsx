import { useEffect, useState } from "preact/hooks";
import { api, data } from "@/api/client";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice, Loading } from "@/parts/notices";
import type { Run } from "./columns";
import { formatTags, parseTags } from "./tags";

const UNCHANGED = {
  queue: null,
  priority: null,
  roles: null,
  hold: null,
  archived: null,
  label: null,
  note: null,
};

/** Changes name, tags and note of a run. A listing cuts long tags, so the run is read first. */
export function EditDialog({ run, onClose, onDone }: { run: Run; onClose: () => void; onDone: () => void }) {
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
  const [label, setLabel] = useState(run.spec.label ?? "");
  const [tags, setTags] = useState(formatTags(run.spec.tags ?? {}));
  const [note, setNote] = useState(run.note);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const save = async () => {
    setBusy(true);
    try {
      const wanted = parseTags(tags);
      const untag = Object.keys(run.spec.tags ?? {}).filter((key) => !(key in wanted));
      const body = {
        ...UNCHANGED,
        ...(label === (run.spec.label ?? "") ? {} : { label }),
        ...(note === run.note ? {} : { note }),
        tags: wanted,
        untag,
      };
      await data(api.PATCH("/api/v1/runs/{id}", { params: { path: { id: run.id } }, body }));
      onDone();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void save();
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
          value={note}
          onInput={(event) => setNote(event.currentTarget.value)}
        />
      </label>
      {error !== null && <ErrorNotice error={error} />}
      <DialogButtons>
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="primary" type="submit" disabled={isBusy}>
          Save
        </Button>
      </DialogButtons>
    </form>
  );
}
