import { useMemo, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { usePolled } from "@/api/polling";
import { isFinal, listWorkFiles, readManifest, type Run, type TreeFile } from "@/api/runs";
import { Button } from "@/parts/button";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { buildTree, parentsOf, visibleRows, type FileNode } from "@/text/file_tree";
import { formatBytes, formatCount } from "@/text/format";
import { shownName } from "@/text/shown_name";
import { saveFile } from "./fields";
import { FilePreview } from "@/parts/file_preview";
import { Name } from "@/parts/name";
import styles from "./files_tab.module.css";

const MAX_DOWNLOAD_BYTES = 1 << 30;
const POLL_MS = 5000;
const MAX_ROWS = 2000;

interface Place {
  key: string;
  title: string;
  load: () => Promise<TreeFile[]>;
}

/** The trees of files that the run has: what it started from, and what it wrote. */
function placesOf(run: Run): Place[] {
  const places: Place[] = [];
  const add = (key: string, title: string, digest: string | null | undefined) => {
    if (digest) {
      places.push({ key, title, load: () => readManifest(digest) });
    }
  };
  if (!isFinal(run) && run.attempt !== null) {
    places.push({ key: "live", title: "Working folder", load: () => listWorkFiles(run.id) });
  }
  add("artifact", "Files that it wrote", run.artifact);
  add("code", "Code", run.spec.code);
  add("kept", "Kept for the next attempt", run.run_folder);
  return places;
}

/** The files of a run, as a tree beside a preview. */
export function FilesTab({ run }: { run: Run }) {
  const [search, setSearch] = useSearchParams();
  const places = placesOf(run);
  const place = places.find((each) => each.key === search.get("files")) ?? places[0];
  if (!place) {
    return <Empty title="No files" command="hop run main.py" />;
  }
  return (
    <>
      <div class={styles["places"]} role="group" aria-label="files of">
        {places.map((each) => (
          <Button
            key={each.key}
            kind={each === place ? "plain" : "quiet"}
            aria-pressed={each === place}
            onClick={() =>
              setSearch((old) => {
                const next = new URLSearchParams(old);
                next.set("files", each.key);
                next.delete("file");
                next.delete("line");
                return next;
              })
            }
          >
            {each.title}
          </Button>
        ))}
      </div>
      <Tree key={`${run.id} ${place.key}`} run={run} place={place} />
    </>
  );
}

function Tree({ run, place }: { run: Run; place: Place }) {
  const [search, setSearch] = useSearchParams();
  // the folders of the file that the address names
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set(parentsOf(search.get("file") ?? "")));
  const { data: files, error } = usePolled(`files ${run.id} ${place.key} ${run.artifact}`, place.load, () =>
    place.key === "live" ? POLL_MS : null,
  );
  const root = useMemo(() => (files ? buildTree(files) : null), [files]);
  if (!files || !root) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (files.length === 0) {
    return <Empty title="The run wrote no files" />;
  }
  const rows = visibleRows(root, open);
  const path = search.get("file");
  const chosen = files.find((file) => file.path === path);
  const click = (node: FileNode<TreeFile>) => {
    if (node.file === null) {
      const next = new Set(open);
      if (!next.delete(node.path)) {
        next.add(node.path);
      }
      setOpen(next);
      return;
    }
    setSearch((old) => {
      const next = new URLSearchParams(old);
      next.set("file", node.path);
      next.delete("line");
      return next;
    });
  };
  return (
    <div class={styles["files"]}>
      <div class={styles["tree"]}>
        <p class={styles["quiet"]}>
          {formatCount(root.count, "file")}, {formatBytes(root.sizeBytes)}
        </p>
        <ul>
          {rows.slice(0, MAX_ROWS).map(({ node, depth }) => (
            <li key={`${node.path}${node.file ? "" : "/"}`}>
              <button
                type="button"
                aria-expanded={node.file ? undefined : open.has(node.path)}
                aria-current={node.file && node.path === path ? "true" : undefined}
                style={{ paddingLeft: `${8 + depth * 14}px` }}
                onClick={() => click(node)}
              >
                <span class={styles["name"]}>
                  {node.file ? "" : open.has(node.path) ? "▾ " : "▸ "}
                  <Name text={node.name} />
                </span>
                <span class={styles["size"]}>{formatBytes(node.sizeBytes)}</span>
              </button>
            </li>
          ))}
        </ul>
        {rows.length > MAX_ROWS && <p class={styles["quiet"]}>and {rows.length - MAX_ROWS} more</p>}
      </div>
      <div class={styles["preview"]}>
        {chosen ? (
          <>
            <header>
              <h2>
                <Name text={chosen.path} />
              </h2>
              <span class={styles["quiet"]}>{formatBytes(chosen.sizeBytes)}</span>
              <DownloadButton run={run} file={chosen} />
            </header>
            <FilePreview key={`${place.key} ${chosen.path}`} file={chosen} />
          </>
        ) : (
          <Empty
            title={path === null ? "Choose a file to look at it" : `There is no file ${shownName(path)} here`}
            command={`hop pull ${run.name}`}
          />
        )}
      </div>
    </div>
  );
}

function DownloadButton({ run, file }: { run: Run; file: TreeFile }) {
  const [error, setError] = useState<unknown>(null);
  if (file.sizeBytes > MAX_DOWNLOAD_BYTES) {
    return <code>hop pull {run.name}</code>;
  }
  return (
    <>
      <Button
        onClick={() => {
          setError(null);
          file
            .read()
            .then((bytes) => saveFile(file.path.split("/").at(-1) ?? "file", bytes))
            .catch(setError);
        }}
      >
        Download
      </Button>
      {error !== null && <ErrorNotice error={error} />}
    </>
  );
}
