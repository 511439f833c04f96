import { useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import {
  type Dataset,
  type DatasetEntry,
  datasetFile,
  type DatasetVersion,
  fileAddress,
} from "@/api/datasets";
import { usePolled } from "@/api/polling";
import { Button } from "@/parts/button";
import field from "@/parts/field.module.css";
import { FilePreview } from "@/parts/file_preview";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { saveFile } from "@/parts/save_file";
import { useShortcuts } from "@/shell/keys";
import { formatBytes, formatCount } from "@/text/format";
import { shownName } from "@/text/shown_name";
import { isPicture, isGallery, parentFolders } from "./entries";
import styles from "./files_tab.module.css";

const LIST_ROWS = 200;
const GALLERY_ROWS = 60;
const MAX_PICTURE_BYTES = 16 << 20; // a larger one is not in the gallery
const MAX_DOWNLOAD_BYTES = 1 << 30;
const FILTER_ID = "files-filter";

type Listing = Schemas["DatasetFilesOut"];

/** The files of a version: folder by folder or found by name, as a list or a gallery, with a preview. */
export function FilesTab({ dataset, versions }: { dataset: Dataset; versions: readonly DatasetVersion[] }) {
  const [search, setSearch] = useSearchParams();
  const wanted = Number(search.get("version")) || dataset.newest?.number;
  const version = versions.find((each) => each.number === wanted);
  const folder = search.get("folder") ?? "";
  const change = (changes: Record<string, string | null>, replace = false) =>
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        next.delete("line"); // of the file that was open
        for (const [key, value] of Object.entries(changes)) {
          if (value === null || value === "") {
            next.delete(key);
          } else {
            next.set(key, value);
          }
        }
        return next;
      },
      { replace },
    );
  if (versions.length === 0) {
    return <Empty title="No versions" command={`hop dataset push ${dataset.name} PATH`} />;
  }
  return (
    <>
      <div class={page["bar"]}>
        <label>
          Version
          <select
            class={`${field["input"]} ${styles["version"]}`}
            value={version?.number ?? ""}
            onChange={(event) =>
              change({ version: event.currentTarget.value, folder: null, file: null, contains: null })
            }
          >
            {version === undefined && <option value="">{wanted}</option>}
            {versions.map((each) => (
              <option key={each.number} value={each.number}>
                {each.number}
                {each.message ? ` – ${each.message.slice(0, 60)}` : ""}
              </option>
            ))}
          </select>
        </label>
        <input
          id={FILTER_ID}
          type="search"
          class={field["input"]}
          placeholder="Find files by name"
          aria-label="find files"
          value={search.get("contains") ?? ""}
          onInput={(event) => change({ contains: event.currentTarget.value }, true)}
        />
      </div>
      {version === undefined ? (
        <Empty title={`There is no version ${wanted}`}>
          <p>It was deleted, or never pushed.</p>
        </Empty>
      ) : (
        <Listing
          key={`${version.number} ${folder} ${search.get("contains") ?? ""}`}
          version={version}
          change={change}
        />
      )}
    </>
  );
}

function Listing({
  version,
  change,
}: {
  version: DatasetVersion;
  change: (changes: Record<string, string | null>, replace?: boolean) => void;
}) {
  const [search] = useSearchParams();
  const folder = search.get("folder") ?? "";
  const contains = search.get("contains") ?? "";
  const path = search.get("file");
  const view = search.get("view");
  const [starts, setStarts] = useState<string[]>([""]); // of the pages up to the shown one
  const after = starts.at(-1) ?? "";
  const limit = view === "list" ? LIST_ROWS : GALLERY_ROWS;
  const { data: listing, error } = usePolled<Listing>(
    `files ${version.dataset} ${version.number} ${folder} ${contains} ${after} ${limit}`,
    () =>
      data(
        api.GET("/api/v1/datasets/{name}/versions/{version}/files", {
          params: {
            path: { name: version.dataset, version: String(version.number) },
            query: { folder, limit, ...(contains ? { contains } : {}), ...(after ? { after } : {}) },
          },
        }),
      ),
    () => null,
  );
  const entries = listing?.entries ?? [];
  const files = entries.filter((entry) => entry.kind === "file");
  const position = files.findIndex((entry) => entry.path === path);
  const step = (by: number) => {
    const next = files[position < 0 ? 0 : position + by];
    if (next) {
      change({ file: next.path }, true);
    }
  };
  const section = "Files of a dataset";
  useShortcuts([
    { keys: "/", text: "Find files", section, run: () => document.getElementById(FILTER_ID)?.focus() },
    { keys: "j", text: "Next file", section, run: () => step(1) },
    { keys: "k", text: "File before", section, run: () => step(-1) },
    { keys: "Escape", text: "Close the preview", section, run: () => change({ file: null }) },
  ]);
  if (listing === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  const asGallery = view === "gallery" || (view !== "list" && isGallery(entries));
  const open = (entry: DatasetEntry) => {
    if (entry.kind === "folder") {
      change({ folder: entry.path, file: null, contains: null });
    } else if (entry.kind === "file") {
      change({ file: entry.path });
    }
  };
  const chosen = files[position];
  return (
    <>
      <div class={styles["head"]}>
        <nav aria-label="folder" class={styles["crumbs"]}>
          {parentFolders(version.dataset, folder).map(({ name, path: parent }, index) => (
            <span key={parent}>
              {index > 0 && <span aria-hidden="true"> / </span>}
              <button type="button" onClick={() => change({ folder: parent, file: null, contains: null })}>
                <Name text={name} />
              </button>
            </span>
          ))}
        </nav>
        <div role="group" aria-label="view" class={styles["views"]}>
          {["list", "gallery"].map((each) => (
            <Button
              key={each}
              kind={(each === "gallery") === asGallery ? "plain" : "quiet"}
              aria-pressed={(each === "gallery") === asGallery}
              onClick={() => change({ view: each }, true)}
            >
              {each === "list" ? "List" : "Gallery"}
            </Button>
          ))}
        </div>
      </div>
      {entries.length === 0 ? (
        <Empty title={contains ? `No file has “${contains}” in its path` : "No files"} />
      ) : (
        <div class={chosen ? styles["split"] : undefined}>
          <div class={styles["entries"]}>
            {asGallery ? (
              <Gallery version={version} entries={entries} path={path} onOpen={open} />
            ) : (
              <List entries={entries} folder={contains ? "" : folder} path={path} onOpen={open} />
            )}
            {(starts.length > 1 || listing.next !== null) && (
              <div class={styles["pages"]}>
                <Button disabled={starts.length === 1} onClick={() => setStarts(starts.slice(0, -1))}>
                  ← Back
                </Button>
                <span class={page["quiet"]}>Page {starts.length}</span>
                <Button
                  disabled={listing.next === null}
                  onClick={() => setStarts([...starts, listing.next ?? ""])}
                >
                  Next →
                </Button>
              </div>
            )}
          </div>
          {chosen && (
            <section class={styles["preview"]} aria-label="preview">
              <header>
                <h2>
                  <Name text={chosen.path} />
                </h2>
                <span class={page["quiet"]}>{formatBytes(chosen.size_bytes)}</span>
                <div>
                  <Button aria-label="file before" disabled={position === 0} onClick={() => step(-1)}>
                    ←
                  </Button>
                  <Button
                    aria-label="next file"
                    disabled={position === files.length - 1}
                    onClick={() => step(1)}
                  >
                    →
                  </Button>
                  <Download version={version} entry={chosen} />
                  <Button kind="quiet" onClick={() => change({ file: null })}>
                    Close
                  </Button>
                </div>
              </header>
              <FilePreview key={chosen.path} file={datasetFile(version, chosen.path, chosen.size_bytes)} />
            </section>
          )}
        </div>
      )}
    </>
  );
}

interface EntriesProps {
  entries: readonly DatasetEntry[];
  path: string | null;
  onOpen: (entry: DatasetEntry) => void;
}

function List({ entries, folder, path, onOpen }: EntriesProps & { folder: string }) {
  const from = folder === "" ? 0 : folder.length + 1;
  return (
    <ul class={styles["list"]}>
      {entries.map((entry) => (
        <li key={entry.path}>
          <button
            type="button"
            disabled={entry.kind === "link"}
            aria-current={entry.path === path ? "true" : undefined}
            onClick={() => onOpen(entry)}
          >
            <span class={styles["name"]}>
              <Name text={`${entry.path.slice(from)}${entry.kind === "folder" ? "/" : ""}`} />
              {entry.kind === "link" && (
                <span class={page["quiet"]}>
                  {" "}
                  → <Name text={entry.target} />
                </span>
              )}
            </span>
            <span class={page["quiet"]}>
              {entry.kind === "folder" && `${formatCount(entry.files, "file")}, `}
              {entry.kind !== "link" && formatBytes(entry.size_bytes)}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

/** Pictures as small pictures, all else by name. */
function Gallery({ version, entries, path, onOpen }: EntriesProps & { version: DatasetVersion }) {
  return (
    <ul class={styles["gallery"]}>
      {entries.map((entry) => {
        const name = entry.path.split("/").at(-1) ?? "";
        const isShown = isPicture(entry) && entry.size_bytes <= MAX_PICTURE_BYTES;
        return (
          <li key={entry.path}>
            <button
              type="button"
              disabled={entry.kind === "link"}
              title={shownName(entry.path)}
              aria-current={entry.path === path ? "true" : undefined}
              onClick={() => onOpen(entry)}
            >
              {isShown ? (
                <img src={fileAddress(version, entry.path)} alt="" loading="lazy" decoding="async" />
              ) : (
                <span class={styles["icon"]} aria-hidden="true">
                  {entry.kind === "folder" ? formatCount(entry.files, "file") : kindOf(name)}
                </span>
              )}
              <span class={styles["name"]}>
                <Name text={`${name}${entry.kind === "folder" ? "/" : ""}`} />
              </span>
            </button>
          </li>
        );
      })}
    </ul>
  );
}

function kindOf(name: string): string {
  const ending = name.includes(".") ? (name.split(".").at(-1) ?? "") : "";
  return ending.length > 0 && ending.length <= 8 ? ending.toUpperCase() : "FILE";
}

function Download({ version, entry }: { version: DatasetVersion; entry: DatasetEntry }) {
  const [error, setError] = useState<unknown>(null);
  if (entry.size_bytes > MAX_DOWNLOAD_BYTES) {
    return (
      <code>
        hop dataset pull {version.dataset}:{version.number}
      </code>
    );
  }
  return (
    <>
      <Button
        onClick={() => {
          setError(null);
          datasetFile(version, entry.path, entry.size_bytes)
            .read()
            .then((bytes) => saveFile(entry.path.split("/").at(-1) ?? "file", bytes))
            .catch(setError);
        }}
      >
        Download
      </Button>
      {error !== null && <ErrorNotice error={error} />}
    </>
  );
}
