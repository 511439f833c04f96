/** Files as a tree of folders. */

export interface FileNode<T> {
  name: string;
  path: string;
  file: T | null; // null: a folder
  children: FileNode<T>[];
  sizeBytes: number; // of all files below
  count: number; // of all files below
}

/** Returns the root of the tree: folders first, each by name. */
export function buildTree<T extends { path: string; sizeBytes: number }>(files: readonly T[]): FileNode<T> {
  const root: FileNode<T> = folder("", "");
  const folders = new Map<string, FileNode<T>>([["", root]]);
  for (const file of files) {
    const parts = file.path.split("/");
    let parent = root;
    add(root, file);
    for (let depth = 1; depth < parts.length; depth += 1) {
      const path = parts.slice(0, depth).join("/");
      let node = folders.get(path);
      if (!node) {
        node = folder<T>(parts[depth - 1] ?? "", path);
        folders.set(path, node);
        parent.children.push(node);
      }
      add(node, file);
      parent = node;
    }
    const name = parts.at(-1) ?? "";
    parent.children.push({
      name,
      path: file.path,
      file,
      children: [],
      sizeBytes: file.sizeBytes,
      count: 1,
    });
  }
  for (const node of folders.values()) {
    node.children.sort(
      (a, b) => Number(a.file !== null) - Number(b.file !== null) || (a.name < b.name ? -1 : 1),
    );
  }
  return root;
}

function folder<T>(name: string, path: string): FileNode<T> {
  return { name, path, file: null, children: [], sizeBytes: 0, count: 0 };
}

function add<T extends { sizeBytes: number }>(node: FileNode<T>, file: T): void {
  node.sizeBytes += file.sizeBytes;
  node.count += 1;
}

/** Returns the rows of the open part of a tree, with their depth. */
export function visibleRows<T>(
  root: FileNode<T>,
  open: ReadonlySet<string>,
): { node: FileNode<T>; depth: number }[] {
  const rows: { node: FileNode<T>; depth: number }[] = [];
  const visit = (node: FileNode<T>, depth: number): void => {
    for (const child of node.children) {
      rows.push({ node: child, depth });
      if (child.file === null && open.has(child.path)) {
        visit(child, depth + 1);
      }
    }
  };
  visit(root, 0);
  return rows;
}

/** Returns the folders above a path, the outermost first. */
export function parentsOf(path: string): string[] {
  const parts = path.split("/").slice(0, -1);
  return parts.map((_, depth) => parts.slice(0, depth + 1).join("/"));
}
