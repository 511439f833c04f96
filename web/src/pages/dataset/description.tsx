import { useState } from "preact/hooks";
import { api, data } from "@/api/client";
import type { Dataset, DatasetVersion } from "@/api/datasets";
import { whyNoDescribe } from "@/api/rights";
import { Button } from "@/parts/button";
import { ConflictNotice, saveOver } from "@/parts/conflict";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { LateMarkdown, topHeading } from "@/parts/late_markdown";
import { MarkdownField } from "@/parts/markdown_field";
import { ErrorNotice } from "@/parts/notices";
import styles from "./dataset_page.module.css";

/** The description of a dataset, and its editor for users with the right to change it. */
export function Description({
  dataset,
  versions,
  reload,
}: {
  dataset: Dataset;
  versions: readonly DatasetVersion[];
  reload: () => void;
}) {
  const [isEditing, setEditing] = useState(false);
  const text = dataset.description ?? "";
  const refusal = whyNoDescribe(versions);
  if (text === "" && refusal !== "") {
    return null;
  }
  return (
    <section class={styles["description"]} aria-label="description">
      {text !== "" && (
        <div class={styles["prose"]} role="region" aria-label="text of the description" tabIndex={0}>
          <LateMarkdown text={text} top={topHeading([text])} />
        </div>
      )}
      <Button kind="quiet" disabled={refusal !== ""} title={refusal} onClick={() => setEditing(true)}>
        {text === "" ? "+ Add a description" : "Edit the description"}
      </Button>
      {isEditing && <Editor dataset={dataset} onClose={() => setEditing(false)} onSaved={reload} />}
    </section>
  );
}

function Editor({
  dataset,
  onClose,
  onSaved,
}: {
  dataset: Dataset;
  onClose: () => void;
  onSaved: () => void;
}) {
  const [opened, setOpened] = useState(dataset); // the page reads the dataset again while this is open
  const [text, setText] = useState(dataset.description ?? "");
  const [theirs, setTheirs] = useState<Dataset | null>(null);
  const [error, setError] = useState<unknown>(null);
  const path = { path: { name: dataset.name } };
  const save = (base: number) => {
    setError(null);
    setTheirs(null);
    saveOver(
      () =>
        data(
          api.PUT("/api/v1/datasets/{name}/description", {
            params: path,
            body: { description: text, revision: base },
          }),
        ),
      () => data(api.GET("/api/v1/datasets/{name}", { params: path })),
      (stored) => (stored.description_revision ?? 0) !== base,
    )
      .then((other) => {
        if (other === null) {
          onSaved();
          onClose();
        } else {
          setTheirs(other.theirs);
        }
      })
      .catch(setError);
  };
  return (
    <Dialog title={`Description of ${dataset.name}`} isOpen isWide onClose={onClose}>
      <form
        class={styles["editor"]}
        onSubmit={(event) => {
          event.preventDefault();
          save(opened.description_revision ?? 0);
        }}
      >
        <MarkdownField text={text} onChange={setText} />
        {error !== null && <ErrorNotice error={error} />}
        {theirs !== null && (
          <ConflictNotice
            text="Another user or browser changed the description meanwhile."
            load="Load theirs"
            keep="Keep mine"
            onLoad={() => {
              setOpened(theirs);
              setText(theirs.description ?? "");
              setTheirs(null);
            }}
            onKeep={() => save(theirs.description_revision ?? 0)}
          />
        )}
        <DialogButtons>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit">
            Save
          </Button>
        </DialogButtons>
      </form>
    </Dialog>
  );
}
