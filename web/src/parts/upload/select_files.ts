/** Decides which files of a chosen folder are uploaded, by the rules of `hop run` and `hop dataset push`. */
import { ApiError } from "@/api/client";
import { GitIgnore } from "./git_ignore";

/** A file of a chosen folder. `path`: below the folder. */
export interface ChosenFile {
  path: string;
  file: Blob;
}

export interface Selected {
  files: ChosenFile[];
  leftOut: { path: string; reason: string }[];
}

/** `ignoreFiles`: files with patterns; later ones count more. `names`, `suffixes`: left out, unless a pattern
 *  includes them. `refusesNames`: whether a name that no tree can hold is an error, rather than left out. */
export interface SelectRules {
  ignoreFiles: readonly string[];
  names: ReadonlySet<string>;
  suffixes: readonly string[];
  refusesNames: boolean;
}

// as `hopyard.datasets.ignore_rules`
const CODE_NAMES: ReadonlySet<string> = new Set([
  ...[".netrc", "_netrc", ".git-credentials", ".pypirc", ".dockercfg", ".pgpass"],
  ...["id_rsa", "id_ecdsa", "id_ed25519"],
  ...[".git", ".hg", ".svn", ".jj"],
  ...[".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".idea"],
  ...[".DS_Store", ".hopyard", "__pycache__", ".venv", "venv", "node_modules"],
]);
const REPOSITORIES: ReadonlySet<string> = new Set([".git", ".hg", ".jj"]);
const MAX_PART_BYTES = 255;

export const CODE_RULES: SelectRules = {
  ignoreFiles: [".gitignore", ".hopignore"],
  names: CODE_NAMES,
  suffixes: [".pyc", ".pyo"],
  refusesNames: false,
};
export const DATA_RULES: SelectRules = {
  ignoreFiles: [".hopignore"],
  names: new Set([".git", ".DS_Store"]),
  suffixes: [],
  refusesNames: true,
};

interface IgnoreFile {
  name: string;
  prefix: string;
  patterns: GitIgnore;
}

/** Returns the files that belong to the tree, and what is left out with its reason. Throws for a name that the
 *  rules refuse. */
export async function selectFiles(chosen: readonly ChosenFile[], rules: SelectRules): Promise<Selected> {
  const isUsual = (name: string) =>
    rules.names.has(name) || rules.suffixes.some((suffix) => name.endsWith(suffix));
  const ignoreFiles = new Map<string, IgnoreFile[]>();
  for (const { path, file } of chosen) {
    const cut = path.lastIndexOf("/") + 1;
    const name = path.slice(cut);
    if (rules.ignoreFiles.includes(name) && !path.split("/").some((part) => rules.names.has(part))) {
      const prefix = path.slice(0, cut);
      const found = ignoreFiles.get(prefix) ?? [];
      found.push({ name: path, prefix, patterns: new GitIgnore(await file.text()) });
      const rank = ({ name: of }: IgnoreFile) => rules.ignoreFiles.indexOf(fileName(of));
      found.sort((a, b) => rank(b) - rank(a));
      ignoreFiles.set(prefix, found);
    }
  }
  const folders = new Map<string, string | null>();
  const reasonOf = (path: string, isFolder: boolean): string | null => {
    const name = fileName(path);
    if (REPOSITORIES.has(name.toLowerCase())) {
      return "a repository";
    }
    for (let prefix = parentOf(path); ; prefix = parentOf(prefix.slice(0, -1))) {
      for (const { name: file, patterns } of ignoreFiles.get(prefix) ?? []) {
        const match = patterns.match(path.slice(prefix.length), isFolder);
        if (match?.excluded) {
          return `${file}, line ${match.line}`;
        }
        if (match?.isLiteral) {
          return null;
        }
        if (match) {
          return isUsual(name) ? "left out by default" : null;
        }
      }
      if (prefix === "") {
        return isUsual(name) ? "left out by default" : null;
      }
    }
  };
  const folderReason = (folder: string): string | null => {
    if (folder === "") {
      return null;
    }
    const known = folders.get(folder);
    if (known !== undefined) {
      return known;
    }
    const reason = folderReason(parentOf(folder).slice(0, -1)) ?? reasonOf(folder, true);
    folders.set(folder, reason);
    return reason;
  };
  const selected: Selected = { files: [], leftOut: [] };
  const named = new Set<string>();
  for (const each of chosen) {
    const folder = parentOf(each.path).slice(0, -1);
    const above = folderReason(folder);
    const bad = nameProblem(each.path);
    const reason = above ?? reasonOf(each.path, false) ?? bad;
    if (reason !== null && reason === bad && rules.refusesNames) {
      throw new ApiError(0, "bad_name", `\`${each.path}\` cannot be uploaded: ${bad}`, [
        "rename it, or name it in a .hopignore file",
      ]);
    }
    if (reason === null) {
      selected.files.push(each);
    } else {
      const path = above === null ? each.path : `${topLeftOut(folder, folders)}/`;
      if (!named.has(path)) {
        named.add(path);
        selected.leftOut.push({ path, reason });
      }
    }
  }
  return selected;
}

function topLeftOut(folder: string, folders: ReadonlyMap<string, string | null>): string {
  const parent = parentOf(folder).slice(0, -1);
  return parent !== "" && typeof folders.get(parent) === "string" ? topLeftOut(parent, folders) : folder;
}

function fileName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** The folder of a path, with `/` at its end; "" for the top. */
function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf("/") + 1);
}

/** Why no tree can have a file of this name, null if it can. */
function nameProblem(path: string): string | null {
  if (/[\u0000-\u001f\u007f-\u009f\\]/.test(path)) {
    return "its name has control characters or a backslash";
  }
  return path.split("/").some((part) => new TextEncoder().encode(part).length > MAX_PART_BYTES)
    ? "its name is too long"
    : null;
}

/** Puts the files of a chooser or a drop below one folder. Returns its name as well. */
export function belowFolder(files: readonly ChosenFile[]): { name: string; files: ChosenFile[] } {
  const first = files[0]?.path.split("/") ?? [];
  const top = first.length > 1 ? (first[0] ?? "") : "";
  if (top === "" || !files.every(({ path }) => path.startsWith(`${top}/`))) {
    return { name: "", files: [...files] };
  }
  return {
    name: top,
    files: files.map(({ path, file }) => ({ path: path.slice(top.length + 1), file })),
  };
}

/** Reads what was dropped, folders with all that is in them. */
export async function droppedFiles(transfer: DataTransfer, rules: SelectRules): Promise<ChosenFile[]> {
  const entries = [...transfer.items]
    .map((item) => item.webkitGetAsEntry())
    .filter((entry) => entry !== null);
  const files: ChosenFile[] = [];
  const visit = async (entry: FileSystemEntry): Promise<void> => {
    if (entry.isFile) {
      const file = await new Promise<File>((done, failed) =>
        (entry as FileSystemFileEntry).file(done, failed),
      );
      files.push({ path: entry.fullPath.replace(/^\//, ""), file });
    } else if (!rules.names.has(entry.name)) {
      const reader = (entry as FileSystemDirectoryEntry).createReader();
      for (;;) {
        const batch = await new Promise<FileSystemEntry[]>((done, failed) =>
          reader.readEntries(done, failed),
        );
        if (batch.length === 0) {
          return;
        }
        for (const each of batch) {
          await visit(each);
        }
      }
    }
  };
  for (const entry of entries) {
    await visit(entry);
  }
  return files;
}
