/** The files of the code of runs, against those of one of them. */

export type FileState = "same" | "changed" | "added" | "removed" | "absent";

export interface ComparedFile<T> {
  path: string;
  /** Of each run; null where it does not have the file. */
  files: readonly (T | null)[];
  /** Of each run against the base. */
  states: readonly FileState[];
  isDifferent: boolean;
}

/** Returns all files of the runs, those that differ first, each by name. `trees`: of each run. */
export function compareFiles<T extends { path: string; sizeBytes: number; content?: string }>(
  trees: readonly (readonly T[])[],
  base: number,
): ComparedFile<T>[] {
  const byPath = trees.map((tree) => new Map(tree.map((file) => [file.path, file])));
  const paths = [...new Set(trees.flatMap((tree) => tree.map((file) => file.path)))].sort();
  const compared = paths.map((path) => {
    const files = byPath.map((tree) => tree.get(path) ?? null);
    const first = files[base] ?? null;
    const states = files.map((file): FileState => {
      if (file === null) {
        return first === null ? "absent" : "removed";
      }
      if (first === null) {
        return "added";
      }
      const isSame = file.sizeBytes === first.sizeBytes && file.content === first.content;
      return isSame ? "same" : "changed";
    });
    return { path, files, states, isDifferent: states.some((state) => state !== "same") };
  });
  return [...compared.filter((file) => file.isDifferent), ...compared.filter((file) => !file.isDifferent)];
}
