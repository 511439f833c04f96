import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { api, ApiError, data } from "@/api/client";
import type { Dataset } from "@/api/datasets";
import { Button } from "@/parts/button";
import { TextField, type Problem } from "@/parts/form_field";
import fields from "@/parts/form.module.css";
import { ErrorNotice } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { DropZone } from "@/parts/upload/drop_zone";
import { LeftOut } from "@/parts/upload/left_out";
import {
  belowFolder,
  DATA_RULES,
  selectFiles,
  type ChosenFile,
  type Selected,
} from "@/parts/upload/select_files";
import { repeated, type Tree } from "@/parts/upload/tree";
import { UploadProgress } from "@/parts/upload/upload_progress";
import { useUpload } from "@/parts/upload/use_upload";
import { formatBytes } from "@/text/format";
import { nameProblem, originProblem, suggestedName, type Direction, type PushDraft } from "./push_data";
import styles from "./datasets_page.module.css";

const MAX_FILES = 100_000; // of which a browser keeps the list
const UPLOADS = 5; // of missing bytes, which may be swept before the version exists

interface Pushed {
  name: string;
  number: number;
  isNew: boolean;
  sent: number;
}

/** A new version of a dataset from files of the browser's machine. `name`: of the dataset, "" for a new one. */
export function PushPage({ name, datasets }: { name: string; datasets: readonly Dataset[] }) {
  const [draft, setDraft] = useState<PushDraft>({ name, message: "", origin: "", metric: "", direction: "" });
  const [selected, setSelected] = useState<Selected | null>(null);
  const [pushed, setPushed] = useState<Pushed | null>(null);
  const { step, error, run, cancel } = useUpload();
  const existing = datasets.find((each) => each.name === draft.name);
  const change = (part: Partial<PushDraft>) => setDraft((old) => ({ ...old, ...part }));
  const badName = toProblem(nameProblem(draft.name));
  const badOrigin = toProblem(originProblem(draft.origin, datasets));

  const choose = (chosen: Promise<ChosenFile[]>) =>
    run(async ({ signal }) => {
      const below = belowFolder(await chosen);
      const found = await selectFiles(below.files, DATA_RULES);
      signal.throwIfAborted();
      if (found.files.length === 0) {
        throw new ApiError(0, "no_files", "there are no files in it that could be uploaded", [
          "check its .hopignore file, which may leave out too much",
        ]);
      }
      if (found.files.length > MAX_FILES) {
        throw new ApiError(
          0,
          "too_many_files",
          `these are ${count(found.files.length)}, and a browser uploads at most ${count(MAX_FILES)} at once`,
          ["pack them into archives", "or use `hop dataset push NAME FOLDER` in a terminal"],
        );
      }
      setSelected(found);
      const single = found.files.length === 1 ? (found.files[0]?.path ?? "") : "";
      setDraft((old) => ({ ...old, name: old.name || suggestedName(below.name || single) }));
    });
  const push = () =>
    run(async ({ upload, uploadAgain, signal, setStep }) => {
      const uploaded = await upload(selected?.files ?? []);
      setStep({ text: "Making the version", done: 0, total: 0 });
      const body = {
        manifest: uploaded.tree.digest,
        message: draft.message,
        derived_from: draft.origin || null,
        metric: (existing === undefined && draft.metric.trim()) || null,
      };
      const made = await makeVersion(draft.name, body, uploaded.tree, uploadAgain, signal);
      if (body.metric !== null && draft.direction !== "") {
        await data(
          api.PATCH("/api/v1/datasets/{name}", {
            params: { path: { name: draft.name } },
            body: { metric: body.metric, higher_is_better: draft.direction === "higher" },
          }),
        );
      }
      setPushed({
        name: draft.name,
        number: made.version.number,
        isNew: made.created,
        sent: uploaded.sent,
      });
    });

  if (pushed !== null) {
    return <Done pushed={pushed} />;
  }
  const sizeBytes = selected?.files.reduce((sum, { file }) => sum + file.size, 0) ?? 0;
  return (
    <div class={page["page"]}>
      <header class={page["head"]}>
        <h1>{name === "" ? "New dataset" : `New version of ${name}`}</h1>
        <Link href={name === "" ? "/datasets" : `/datasets/${encodeURIComponent(name)}?tab=versions`}>
          {name === "" ? "All datasets" : `The versions of ${name}`}
        </Link>
      </header>
      <form
        class={styles["push"]}
        onSubmit={(event) => {
          event.preventDefault();
          void push();
        }}
      >
        <section class={fields["section"]} aria-label="files">
          <h2>Files</h2>
          {step !== null ? (
            <UploadProgress step={step} onCancel={cancel} />
          ) : selected === null ? (
            <DropZone rules={DATA_RULES} onChosen={(chosen) => void choose(chosen)}>
              All files of the folder belong to the version, except <code>.git</code> and what its .hopignore
              names. A browser passes on no links, no empty folders and no modes of files.
            </DropZone>
          ) : (
            <>
              <div class={styles["chosen"]}>
                <strong>
                  {count(selected.files.length)}, {formatBytes(sizeBytes)}
                </strong>
                <Button onClick={() => setSelected(null)}>Choose other files</Button>
              </div>
              <LeftOut paths={selected.leftOut} />
            </>
          )}
        </section>
        <fieldset class={styles["fields"]} disabled={step !== null}>
          <section class={fields["section"]} aria-label="version">
            <h2>Version</h2>
            {name === "" && (
              <TextField
                label="Name"
                value={draft.name}
                onChange={(value) => change({ name: value.trim() })}
                placeholder="mnist"
                problem={badName}
                isMono
              />
            )}
            {existing && (
              <p class={fields["help"]}>
                {name === "" && `${existing.name} exists: these files become its next version. `}
                {existing.newest &&
                  `Its newest version is ${existing.newest.number}: ${count(existing.newest.files)}, ${formatBytes(existing.newest.size_bytes)}.`}
              </p>
            )}
            <TextField
              label="Message"
              value={draft.message}
              onChange={(message) => change({ message })}
              placeholder="what is in it, or what has changed"
            />
            <TextField
              label="Made from"
              value={draft.origin}
              onChange={(value) => change({ origin: value.trim() })}
              placeholder="none"
              suggestions={datasets.flatMap(({ name: each, newest }) =>
                newest ? [`${each}:${newest.number}`] : [],
              )}
              help="The version of a dataset that this data was made from: raw:3"
              problem={badOrigin}
              isMono
            />
          </section>
          {existing === undefined && (
            <section class={fields["section"]} aria-label="leaderboard">
              <h2>Leaderboard</h2>
              <div class={fields["grid"]}>
                <TextField
                  label="Metric"
                  value={draft.metric}
                  onChange={(metric) => change({ metric })}
                  placeholder="the one that most runs have"
                  help="Runs on the dataset are ranked by it."
                />
                <div class={fields["field"]}>
                  <label for="push-direction">Which values are better</label>
                  <select
                    id="push-direction"
                    value={draft.direction}
                    disabled={draft.metric.trim() === ""}
                    onChange={(event) => change({ direction: event.currentTarget.value as Direction })}
                  >
                    <option value="">as its name implies</option>
                    <option value="higher">higher values</option>
                    <option value="lower">lower values</option>
                  </select>
                </div>
              </div>
            </section>
          )}
        </fieldset>
        {error !== null && <ErrorNotice error={error} />}
        <div class={fields["buttons"]}>
          <Button
            kind="primary"
            type="submit"
            disabled={
              step !== null ||
              selected === null ||
              draft.name === "" ||
              badName !== null ||
              badOrigin !== null
            }
          >
            {buttonText(step !== null, error !== null && selected !== null, existing)}
          </Button>
          {error !== null && selected !== null && (
            <span class={fields["help"]}>What was uploaded is not sent again.</span>
          )}
        </div>
      </form>
    </div>
  );
}

function Done({ pushed: { name, number, isNew, sent } }: { pushed: Pushed }) {
  const reference = `${name}:${number}`;
  return (
    <section class={styles["done"]} role="status">
      <h1>
        <bdi>{name}</bdi> {isNew ? `has version ${number}` : `is unchanged: still version ${number}`}
      </h1>
      <p>{sent === 0 ? "All of its bytes were on the server." : `${formatBytes(sent)} were uploaded.`}</p>
      <div class={styles["links"]}>
        <Link href={`/datasets/${encodeURIComponent(name)}?tab=files`}>Look at its files</Link>
        <Link href={`/new?dataset=${encodeURIComponent(reference)}`}>Start a run with it</Link>
        <Link href="/datasets">All datasets</Link>
      </div>
    </section>
  );
}

/** Makes the version. Blobs may be swept between their upload and this request: they are then sent again. */
async function makeVersion(
  name: string,
  body: { manifest: string; message: string; derived_from: string | null; metric: string | null },
  tree: Tree,
  uploadAgain: (tree: Tree) => Promise<number>,
  signal: AbortSignal,
) {
  for (let left = UPLOADS; ; left -= 1) {
    try {
      return await repeated(
        () =>
          data(api.POST("/api/v1/datasets/{name}/versions", { params: { path: { name } }, body, signal })),
        signal,
      );
    } catch (failure) {
      if (left === 0 || !(failure instanceof ApiError) || failure.code !== "missing_blobs") {
        throw failure;
      }
      await uploadAgain(tree);
    }
  }
}

function toProblem(message: string): Problem | null {
  return message === "" ? null : { path: "", message, hints: [] };
}

function count(files: number): string {
  return `${files.toLocaleString("en")} ${files === 1 ? "file" : "files"}`;
}

function buttonText(isBusy: boolean, hasFailed: boolean, existing: Dataset | undefined): string {
  if (isBusy) {
    return "Uploading…";
  }
  return hasFailed ? "Try again" : existing ? "Upload the new version" : "Upload the dataset";
}
