/** Packs files into a tree, as `hop run` and `hop dataset push` do, and uploads the blobs that the server lacks.
 *  Of the files, only the parts that are being read, hashed or sent are in memory. */
import { api, ApiError, data } from "@/api/client";
import type { ChosenFile } from "./select_files";

export const CHUNK_BYTES = 8 << 20; // of a file, in one blob
const PACK_BYTES = 8 << 20;
const PACK_BLOBS = 2000;
const DIGEST_BYTES = 32;
const HEAD_BYTES = DIGEST_BYTES + 8;
const MAX_ASKED = 10_000; // digests in one request
const LANES = 4; // files that are read and hashed at a time
/** Before a request is sent again: for ten minutes, in which a server restarts. */
const WAITS_MS: readonly number[] = [1000, 2000, 4000, 8000, ...Array<number>(40).fill(15_000)];

export type Hash = (bytes: ArrayBuffer) => Promise<string>;

export interface Tree {
  digest: string;
  manifest: Uint8Array<ArrayBuffer>;
  /** Where the bytes of each blob are. */
  blobs: Map<string, Blob>;
  /** A file that has the blob, for errors. */
  paths: Map<string, string>;
  sizeBytes: number;
}

/** Progress of packing or of an upload: bytes that are done, of all. */
export type OnProgress = (done: number, total: number) => void;

/** Compares texts by code points, as Python sorts them. */
export function comparePaths(a: string, b: string): number {
  const [left, right] = [Array.from(a), Array.from(b)]; // code points, not units of UTF-16
  for (let at = 0; at < Math.min(left.length, right.length); at += 1) {
    const difference = (left[at]?.codePointAt(0) ?? 0) - (right[at]?.codePointAt(0) ?? 0);
    if (difference !== 0) {
      return difference;
    }
  }
  return left.length - right.length;
}

/** Returns the canonical bytes of a manifest. */
export function encodeManifest(files: [string, number, 0, string[]][]): Uint8Array<ArrayBuffer> {
  const sorted = [...files].sort(([a], [b]) => comparePaths(a, b));
  return new TextEncoder().encode(JSON.stringify({ files: sorted, folders: [], links: [], v: 1 }));
}

/** Reads and hashes files. */
export async function packTree(
  files: readonly ChosenFile[],
  hash: Hash,
  onProgress: OnProgress,
  signal: AbortSignal,
): Promise<Tree> {
  const total = files.reduce((sum, { file }) => sum + file.size, 0);
  const blobs = new Map<string, Blob>();
  const paths = new Map<string, string>();
  const entries: [string, number, 0, string[]][] = [];
  let [done, next] = [0, 0];
  const packFiles = async () => {
    for (let each = files[next++]; each !== undefined; each = files[next++]) {
      const { path, file } = each;
      const chunks: string[] = [];
      for (let offset = 0; offset < file.size; offset += CHUNK_BYTES) {
        signal.throwIfAborted();
        const part = file.slice(offset, Math.min(file.size, offset + CHUNK_BYTES));
        const digest = await hash(await readPart(part, path));
        blobs.set(digest, part);
        paths.set(digest, path);
        chunks.push(digest);
        done += part.size;
        onProgress(done, total);
      }
      entries.push([path, file.size, 0, chunks]);
    }
  };
  await Promise.all(Array.from({ length: LANES }, packFiles));
  const manifest = encodeManifest(entries);
  const digest = await hash(manifest.slice().buffer);
  blobs.set(digest, new Blob([manifest]));
  return { digest, manifest, blobs, paths, sizeBytes: total };
}

async function readPart(part: Blob, path: string): Promise<ArrayBuffer> {
  try {
    return await part.arrayBuffer();
  } catch {
    throw new ApiError(0, "unreadable", `\`${path}\` cannot be read, or changed meanwhile`, [
      "choose the folder again when no program writes to it",
    ]);
  }
}

/** Uploads the blobs that the server lacks. Returns how many bytes it had to send. */
export async function uploadTree(tree: Tree, onProgress: OnProgress, signal: AbortSignal): Promise<number> {
  const digests = [...tree.blobs.keys()];
  const missing: string[] = [];
  for (let at = 0; at < digests.length; at += MAX_ASKED) {
    const page = digests.slice(at, at + MAX_ASKED);
    missing.push(
      ...(
        await repeated(
          () => data(api.POST("/api/v1/blobs/missing", { body: { digests: page }, signal })),
          signal,
        )
      ).missing,
    );
  }
  const sizeOf = (digest: string) => tree.blobs.get(digest)?.size ?? 0;
  const total = missing.reduce((sum, digest) => sum + sizeOf(digest), 0);
  let [done, at] = [0, 0];
  while (at < missing.length) {
    signal.throwIfAborted();
    const pack: string[] = [];
    let size = 0;
    while (at < missing.length && pack.length < PACK_BLOBS) {
      const next = missing[at] ?? "";
      if (pack.length > 0 && size + sizeOf(next) > PACK_BYTES) {
        break;
      }
      pack.push(next);
      size += sizeOf(next);
      at += 1;
    }
    const body = await encodePack(
      pack.map((digest) => [digest, tree.blobs.get(digest) ?? new Blob(), tree.paths.get(digest) ?? ""]),
    );
    await repeated(() => putPack(body, signal), signal);
    done += size;
    onProgress(done, total);
  }
  return total;
}

/** Sends a request again while the server does not answer, or has no room for more of them. */
export async function repeated<T>(
  send: () => Promise<T>,
  signal: AbortSignal,
  waitsMs: readonly number[] = WAITS_MS,
): Promise<T> {
  for (const waitMs of waitsMs) {
    try {
      return await send();
    } catch (error) {
      if (signal.aborted || !(error instanceof ApiError) || ![0, 429, 503].includes(error.status)) {
        throw error;
      }
      await new Promise((done) => window.setTimeout(done, waitMs));
      signal.throwIfAborted();
    }
  }
  return send();
}

/** Returns blobs of files with their digests and sizes, as `POST /blobs/pack` takes them. */
export async function encodePack(blobs: readonly (readonly [string, Blob, string])[]): Promise<Blob> {
  const parts: (Blob | ArrayBuffer)[] = [];
  for (const [digest, blob, path] of blobs) {
    const head = new ArrayBuffer(HEAD_BYTES);
    const bytes = new Uint8Array(head);
    for (let at = 0; at < DIGEST_BYTES; at += 1) {
      bytes[at] = parseInt(digest.slice(2 * at, 2 * at + 2), 16);
    }
    new DataView(head).setBigUint64(DIGEST_BYTES, BigInt(blob.size), true);
    parts.push(head, await readPart(blob, path));
  }
  return new Blob(parts);
}

async function putPack(body: Blob, signal: AbortSignal): Promise<void> {
  await api.POST("/api/v1/blobs/pack", {
    body: body as never, // the description says bytes, for which the generator has no type
    bodySerializer: (bytes: unknown) => bytes as Blob,
    headers: { "Content-Type": "application/octet-stream" },
    signal,
  });
}

/** Hashes in workers beside the page. `stop` ends them. */
export function startHasher(): { hash: Hash; stop: () => void } {
  const waiting = new Map<number, { done: (digest: string) => void; failed: (error: unknown) => void }>();
  const workers = Array.from({ length: Math.max(1, Math.min(LANES, navigator.hardwareConcurrency)) }, () => {
    const worker = new Worker(new URL("./hash_worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data: answer }: MessageEvent<{ id: number; digest: string }>) => {
      waiting.get(answer.id)?.done(answer.digest);
      waiting.delete(answer.id);
    };
    worker.onerror = () => {
      waiting.forEach(({ failed }) => failed(new Error("the files cannot be hashed in this browser")));
      waiting.clear();
    };
    return worker;
  });
  let last = 0;
  return {
    hash: (bytes) =>
      new Promise((done, failed) => {
        last += 1;
        waiting.set(last, { done, failed });
        workers[last % workers.length]?.postMessage({ id: last, bytes }, [bytes]);
      }),
    stop: () => workers.forEach((worker) => worker.terminate()),
  };
}
