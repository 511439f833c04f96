import { useEffect, useRef, useState } from "preact/hooks";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { getRun, readManifest } from "@/api/runs";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { ErrorNotice } from "@/parts/notices";
import { DropZone } from "@/parts/upload/drop_zone";
import { LeftOut, MAX_SHOWN } from "@/parts/upload/left_out";
import { belowFolder, CODE_RULES, selectFiles, type ChosenFile } from "@/parts/upload/select_files";
import { repeated } from "@/parts/upload/tree";
import { UploadProgress } from "@/parts/upload/upload_progress";
import { useUpload } from "@/parts/upload/use_upload";
import { formatBytes, formatCount, formatNumber } from "@/text/format";
import type { Code, Draft, Source } from "./draft";
import { paramsOf, type Param } from "./run_values";
import { TextField } from "@/parts/form_field";
import fields from "@/parts/form.module.css";
import styles from "./new.module.css";

type Kind = "upload" | "git" | "run";
const KINDS: readonly [Kind, string][] = [
  ["upload", "Upload files"],
  ["git", "Git repository"],
  ["run", "Earlier run"],
];
const MAX_LABELLED = 100;
const MAX_FILES = 20_000; // of one run

/** Chooses the code of the run. `onSource`: an earlier run, of which the page takes everything. */
export function CodePart({
  draft,
  isLost,
  onCode,
  onSource,
}: {
  draft: Draft;
  isLost: boolean;
  onCode: (code: Code | null) => void;
  onSource: (run: string) => Promise<void>;
}) {
  const [kind, setKind] = useState<Kind>("upload");
  const { code } = draft;
  if (code !== null && !isLost) {
    return (
      <section class={fields["section"]} aria-label="code">
        <h2>Code</h2>
        <div class={styles["code"]}>
          <span>
            <strong>
              <Name text={code.name || "files"} />
            </strong>{" "}
            · {formatCount(code.files, "file")}
            {code.sizeBytes > 0 && `, ${formatBytes(code.sizeBytes)}`}
            {code.note && ` · ${code.note}`}
          </span>
          <Button onClick={() => onCode(null)}>Choose other code</Button>
        </div>
        <LeftOut paths={code.leftOut} />
      </section>
    );
  }
  return (
    <section class={fields["section"]} aria-label="code">
      <h2>Code</h2>
      {isLost && (
        <p class={fields["problem"]} role="alert">
          The files of the draft are no longer on the server. Choose them again.
        </p>
      )}
      <div class={fields["buttons"]} role="group" aria-label="where the code is from">
        {KINDS.map(([each, title]) => (
          <Button
            key={each}
            kind={each === kind ? "primary" : "plain"}
            aria-pressed={each === kind}
            onClick={() => setKind(each)}
          >
            {title}
          </Button>
        ))}
      </div>
      {kind === "upload" && <Upload onCode={onCode} />}
      {kind === "git" && <Git onCode={onCode} />}
      {kind === "run" && <EarlierRun onSource={onSource} />}
    </section>
  );
}

function Upload({ onCode }: { onCode: (code: Code) => void }) {
  const { step, error, run, cancel } = useUpload();
  const take = (chosen: Promise<ChosenFile[]>) =>
    run(async ({ upload }) => {
      const { name, files } = belowFolder(await chosen);
      const selected = await selectFiles(files, CODE_RULES);
      if (selected.files.length === 0) {
        throw new Error("there is no file that could be uploaded");
      }
      if (selected.files.length > MAX_FILES) {
        throw new Error(
          `these are ${formatNumber(selected.files.length)} files, and a run has at most ${formatNumber(MAX_FILES)}: choose the folder of the code, and push data as a dataset`,
        );
      }
      const { tree, sent } = await upload(selected.files);
      onCode({
        kind: "upload",
        name,
        digest: tree.digest,
        paths: selected.files.map(({ path }) => path),
        files: selected.files.length,
        sizeBytes: tree.sizeBytes,
        leftOut: selected.leftOut.slice(0, MAX_SHOWN),
        git: null,
        note: sent === 0 ? "all of it was on the server" : `${formatBytes(sent)} uploaded`,
      });
    });
  if (step !== null) {
    return <UploadProgress step={step} onCancel={cancel} />;
  }
  return (
    <>
      <DropZone rules={CODE_RULES} onChosen={(chosen) => void take(chosen)}>
        What .gitignore and .hopignore name stays here, and so do caches, environments and keys. Files that
        the server has are not sent again.
      </DropZone>
      {error !== null && <ErrorNotice error={error} />}
    </>
  );
}

function Git({ onCode }: { onCode: (code: Code) => void }) {
  const [address, setAddress] = useState("");
  const [ref, setRef] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const stop = useRef<AbortController | null>(null); // the server then ends the fetch, too
  useEffect(() => () => stop.current?.abort(), []);
  const fetch = async () => {
    const { signal } = (stop.current = new AbortController());
    setBusy(true);
    setError(null);
    try {
      const body = { address: address.trim(), ref: ref.trim() };
      const found = await repeated(() => data(api.POST("/api/v1/code/git", { body, signal })), signal);
      onCode({
        kind: "git",
        name: address.trim(),
        digest: found.code,
        paths: found.paths,
        files: found.files,
        sizeBytes: found.size_bytes,
        leftOut: [
          ...found.submodules.map((path) => ({ path, reason: "a submodule" })),
          ...found.lfs_pointers.map((path) => ({
            path,
            reason: "a pointer of Git LFS in place of the content",
          })),
          ...found.left_out,
        ].slice(0, MAX_SHOWN),
        git: { ...found.git },
        note: `commit ${found.git.commit.slice(0, 12)}`,
      });
    } catch (failure) {
      setError(signal.aborted ? null : failure);
      setBusy(false);
    }
  };
  return (
    <form
      class={fields["rows"]}
      onSubmit={(event) => {
        event.preventDefault();
        void fetch();
      }}
    >
      <TextField
        label="Address"
        value={address}
        onChange={setAddress}
        placeholder="https://github.com/user/project"
        help="The server fetches it, from hosts that its settings allow."
      />
      <TextField
        label="Branch, tag or commit"
        value={ref}
        onChange={setRef}
        placeholder="the default branch"
      />
      <div class={fields["buttons"]}>
        <Button kind="primary" type="submit" disabled={isBusy || address.trim() === ""}>
          {isBusy ? "Fetching…" : "Fetch the code"}
        </Button>
        {isBusy && <Button onClick={() => stop.current?.abort()}>Cancel</Button>}
      </div>
      {error !== null && <ErrorNotice error={error} />}
    </form>
  );
}

/** Returns the name of the newest run with a label; what is no label of a run is returned as it is. */
async function nameOf(text: string): Promise<string> {
  if (text.includes("/")) {
    return text;
  }
  const query = { text, limit: MAX_LABELLED, trials: 0 };
  const { runs } = await data(api.GET("/api/v1/runs", { params: { query } }));
  return runs.find(({ spec }) => spec.label === text)?.name ?? text;
}

function EarlierRun({ onSource }: { onSource: (run: string) => Promise<void> }) {
  const [name, setName] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const newest = usePolled(
    "earlier runs",
    () => data(api.GET("/api/v1/runs", { params: { query: { limit: 50, trials: 0 } } })),
    () => null,
  ).data;
  const names = newest?.runs.flatMap(({ name, spec }) => (spec.label ? [spec.label, name] : [name])) ?? [];
  return (
    <form
      class={fields["rows"]}
      onSubmit={(event) => {
        event.preventDefault();
        setBusy(true);
        setError(null);
        nameOf(name.trim())
          .then(onSource)
          .catch(setError)
          .finally(() => setBusy(false));
      }}
    >
      <TextField
        label="Run"
        value={name}
        onChange={setName}
        placeholder="user/project/12"
        suggestions={names}
        help="Its name, or its label. The page takes its code, command, parameters, resources and environment."
      />
      <div class={fields["buttons"]}>
        <Button kind="primary" type="submit" disabled={isBusy || name.trim() === ""}>
          {isBusy ? "Reading…" : "Take this run"}
        </Button>
      </div>
      {error !== null && <ErrorNotice error={error} />}
    </form>
  );
}

/** Reads an earlier run: its code, and the source of its environment and checkpoints. */
export async function readSource(reference: string): Promise<{
  code: Code | null;
  source: Source;
  values: Record<string, unknown>;
  file: string;
  leftOut: string[];
}> {
  const run = await getRun(reference);
  const described = await data(api.GET("/api/v1/runs/{id}/yaml", { params: { path: { id: run.id } } }));
  const files = described.code ? await readManifest(described.code) : [];
  return {
    code: described.code
      ? {
          kind: "run",
          name: run.spec.label || run.name,
          digest: described.code,
          paths: files.map(({ path }) => path),
          files: files.length,
          sizeBytes: files.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
          leftOut: [],
          git: run.spec.git === null ? null : { ...run.spec.git },
          note: `the code of ${run.name}`,
        }
      : null,
    source: { id: run.id, name: run.name, checkpoint: null, params: paramsOf(described.values) },
    values: described.values,
    file: described.file,
    leftOut: [...described.left_out],
  };
}

/** Reads the parameters of an earlier run as they were set when it saved a checkpoint; null: at its start. */
export async function readParams(id: string, checkpoint: Source["checkpoint"]): Promise<Param[]> {
  const query = checkpoint === null ? {} : { checkpoint: checkpoint.step };
  const described = await data(api.GET("/api/v1/runs/{id}/yaml", { params: { path: { id }, query } }));
  return paramsOf(described.values);
}
