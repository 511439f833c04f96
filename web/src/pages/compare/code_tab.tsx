import { useMemo, useState } from "preact/hooks";
import { usePolled } from "@/api/polling";
import { readManifest, type TreeFile } from "@/api/runs";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { imageType, previewText } from "@/text/file_kind";
import { formatBytes, formatCount } from "@/text/format";
import { compilePattern } from "@/text/pattern";
import styles from "./code_tab.module.css";
import pageStyles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { type ComparedFile, compareFiles, type FileState } from "./compared_files";
import { DiffView } from "./diff_view";
import { RowFilter } from "./row_filter";

const MAX_FILE_BYTES = 4 << 20; // of each of two compared files
const LIST_PAGE = 500;
const NARROW_PX = 720; // two columns of code do not fit
const WORDS: Record<FileState, string> = {
  same: "",
  absent: "",
  changed: "changed",
  added: "added",
  removed: "removed",
};

/** The code of one run against that of another: the files that differ, and their lines. */
export function CodeTab({ runs, labels, view, change }: CompareParts) {
  const withCode = runs.flatMap((run, place) => (run.spec.code ? [place] : []));
  const digests = [...new Set(withCode.map((place) => runs[place]?.spec.code ?? ""))];
  const { data: trees, error } = usePolled(
    `code ${digests.join(" ")}`,
    async () =>
      new Map(
        await Promise.all(digests.map(async (digest) => [digest, await readManifest(digest)] as const)),
      ),
    () => null,
  );
  const placeOf = (id: string, otherwise: number) => {
    const found = withCode.find((place) => runs[place]?.id === id);
    return found ?? otherwise;
  };
  const base = placeOf(view.base, withCode[0] ?? 0);
  const codeOf = (place: number) => runs[place]?.spec.code;
  const usual =
    withCode.find((place) => codeOf(place) !== codeOf(base)) ?? withCode.find((place) => place !== base);
  const against = placeOf(view.against, usual ?? base);
  const files = useMemo(
    () =>
      trees
        ? compareFiles(
            runs.map((run) => trees.get(run.spec.code ?? "") ?? []),
            base,
          )
        : [],
    [trees, runs, base],
  );
  const [limit, setLimit] = useState(LIST_PAGE);
  if (withCode.length < 2) {
    return (
      <Empty title="Fewer than two of these runs have a snapshot of their code" command="hop run main.py">
        <p>
          <code>hop run</code> keeps the code of a run, unless its run file says otherwise.
        </p>
      </Empty>
    );
  }
  if (!trees) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const matches = compilePattern(view.rows);
  const shown = files.filter(
    (file) => (matches?.(file.path) ?? true) && (!view.isDifferencesOnly || file.isDifferent),
  );
  const chosen =
    files.find((file) => file.path === view.file) ??
    shown.find((file) => !["same", "absent"].includes(file.states[against] ?? "same"));
  const choice = (place: number) => (
    <option key={runs[place]?.id} value={runs[place]?.id}>
      {labels[place]}
      {place !== base && codeOf(place) === codeOf(base) ? " (same code)" : ""}
    </option>
  );
  const differing = files.filter((file) => file.isDifferent).length;
  return (
    <>
      <div class={pageStyles["bar"]} role="group" aria-label="code">
        <label>
          Code of
          <select value={runs[base]?.id} onChange={(event) => change({ base: event.currentTarget.value })}>
            {withCode.map(choice)}
          </select>
        </label>
        <label>
          against
          <select
            value={runs[against]?.id}
            onChange={(event) => change({ against: event.currentTarget.value })}
          >
            {withCode.filter((place) => place !== base).map(choice)}
          </select>
        </label>
        <RowFilter view={view} change={change} isInvalid={matches === null} name="Files" />
        <label>
          <input
            type="checkbox"
            checked={view.isUnified}
            onChange={(event) => change({ isUnified: event.currentTarget.checked })}
          />
          One column
        </label>
      </div>
      {differing === 0 && <Empty title="All of these runs have the same code" />}
      <div class={styles["code"]}>
        <nav class={styles["list"]} aria-label="files">
          <p class={styles["quiet"]}>
            {differing} of {formatCount(files.length, "file")} differ
          </p>
          <ul>
            {shown.slice(0, limit).map((file) => (
              <li key={file.path}>
                <button
                  type="button"
                  aria-current={file === chosen ? "true" : undefined}
                  onClick={() => change({ file: file.path })}
                >
                  <Name text={file.path} title={file.path} />
                  <FileMark file={file} against={against} />
                </button>
              </li>
            ))}
          </ul>
          {shown.length > limit && (
            <Button onClick={() => setLimit(limit + LIST_PAGE)}>Show more ({shown.length - limit})</Button>
          )}
        </nav>
        <section class={styles["diff"]} aria-label={chosen?.path ?? "lines"}>
          {chosen ? (
            <FileDiff
              key={`${chosen.path} ${base} ${against}`}
              file={chosen}
              base={base}
              against={against}
              labels={labels}
              isUnified={view.isUnified || window.innerWidth < NARROW_PX}
              onAgainst={(place) => change({ against: runs[place]?.id ?? "" })}
            />
          ) : (
            differing > 0 && <Empty title="Choose a file to see its lines" />
          )}
        </section>
      </div>
    </>
  );
}

/** What happened to the file in the compared run, or in how many others it differs. */
function FileMark({ file, against }: { file: ComparedFile<TreeFile>; against: number }) {
  const state = file.states[against] ?? "same";
  const count = file.states.filter((each) => each !== "same" && each !== "absent").length;
  const word = WORDS[state];
  if (word === "" && count === 0) {
    return null;
  }
  return (
    <span class={`${styles["mark"]} ${styles[state] ?? ""}`}>
      {word === "" ? `in ${formatCount(count, "other run")}` : word}
    </span>
  );
}

interface FileProps {
  file: ComparedFile<TreeFile>;
  base: number;
  against: number;
  labels: readonly string[];
  isUnified: boolean;
  onAgainst: (place: number) => void;
}

function FileDiff({ file, base, against, labels, isUnified, onAgainst }: FileProps) {
  const others = file.states.flatMap((state, place) =>
    place !== against && state !== "same" && state !== "absent" ? [place] : [],
  );
  return (
    <>
      <header>
        <h2>
          <Name text={file.path} />
        </h2>
        <span class={styles["quiet"]}>
          {labels[base]} → {labels[against]}
        </span>
      </header>
      {others.length > 0 && (
        <p class={styles["others"]}>
          <span class={styles["quiet"]}>Differs in</span>
          {others.slice(0, 20).map((place) => (
            <Button key={place} kind="quiet" onClick={() => onAgainst(place)}>
              {labels[place]}
            </Button>
          ))}
        </p>
      )}
      <Lines before={file.files[base] ?? null} after={file.files[against] ?? null} isUnified={isUnified} />
    </>
  );
}

/** The two files, read and compared. null: the run does not have it. */
function Lines({
  before,
  after,
  isUnified,
}: {
  before: TreeFile | null;
  after: TreeFile | null;
  isUnified: boolean;
}) {
  const sizes = [before, after].map((file) => file?.sizeBytes ?? 0);
  const isLarge = sizes.some((size) => size > MAX_FILE_BYTES);
  const { data: bytes, error } = usePolled(
    `${before?.content} ${after?.content}`,
    () =>
      Promise.all(
        [before, after].map(async (file) => (file === null || isLarge ? new Uint8Array() : file.read())),
      ),
    () => null,
  );
  if (before === null && after === null) {
    return <p class={styles["quiet"]}>Neither of the two runs has this file.</p>;
  }
  if (isLarge) {
    return (
      <p class={styles["quiet"]}>
        {sizes.map(formatBytes).join(" → ")}: files above {formatBytes(MAX_FILE_BYTES)} are not compared here.
        Use <code>hop pull</code> and a program of your own.
      </p>
    );
  }
  if (bytes === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const texts = bytes.map((each) => (imageType(each) ? null : previewText(each, MAX_FILE_BYTES)));
  const [one, two] = texts;
  if (one === null || two === null || one === undefined || two === undefined) {
    return <p class={styles["quiet"]}>Not a text: {sizes.map(formatBytes).join(" → ")}</p>;
  }
  return <DiffView before={one} after={two} isUnified={isUnified} />;
}
