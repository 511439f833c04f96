/** Reads what belongs to a run. */
import { api, ApiError, data, type Schemas } from "./client";
import type { ServerEvent } from "./events";
import { FrameParser, joinBlobs, type Frame } from "./frames";

export type Run = Schemas["RunOut"];
export type Command = Schemas["CommandOut"];
export type Checkpoint = Schemas["CheckpointOut"];
export type MediaItem = Schemas["MediaItemOut"];

export const FINAL_PHASES: ReadonlySet<string> = new Set(["succeeded", "failed", "cancelled"]);

/** Whether nothing of the run changes any more, except by people. */
export function isFinal(run: Run): boolean {
  return FINAL_PHASES.has(run.phase);
}

/** Whether an event is about the run: any, or one of these changes. */
export function isOfRun(event: ServerEvent, id: string, changes: readonly string[] = []): boolean {
  return (
    (event.kind === "run" || event.kind === "study") &&
    event.subject === id &&
    (changes.length === 0 || changes.includes(event.change))
  );
}

/** Gets a run by its id or its name `user/project/number`. */
export function getRun(reference: string): Promise<Run> {
  const [user = "", project = "", number = ""] = reference.split("/");
  return project === ""
    ? data(api.GET("/api/v1/runs/{id}", { params: { path: { id: reference } } }))
    : data(
        api.GET("/api/v1/runs/by-name/{user}/{project}/{number}", {
          params: { path: { user, project, number } },
        }),
      );
}

/** Reads all pages of a list. */
export async function allPages<Page extends { next: string | number | null }>(
  get: (after: Page["next"]) => Promise<Page>,
): Promise<Page[]> {
  const pages: Page[] = [];
  let after: Page["next"] = null;
  do {
    const page = await get(after);
    pages.push(page);
    after = page.next;
  } while (after !== null);
  return pages;
}

export interface StreamKey {
  attempt: string;
  rank: number;
  stream: string;
}

/** The streams of output of a run, by attempt and rank. */
export async function listOutputStreams(id: string): Promise<StreamKey[]> {
  const pages = await allPages<Schemas["StreamsOut"]>((after) =>
    data(
      api.GET("/api/v1/runs/{id}/streams", {
        params: { path: { id }, query: after === null ? {} : { after } },
      }),
    ),
  );
  return pages
    .flatMap((page) => page.streams)
    .filter((each) => each.stream === "stdout" || each.stream === "stderr");
}

/** Reads bytes of a stream. `length`: of the whole stream by now. */
export async function readRaw(
  id: string,
  key: StreamKey,
  offset: number,
  limit: number,
): Promise<{ bytes: Uint8Array; length: number }> {
  const { data: body, response } = await api.GET("/api/v1/runs/{id}/raw/{attempt}/{rank}/{stream}", {
    params: {
      path: { id, attempt: key.attempt, rank: String(key.rank), stream: key.stream },
      query: { offset, limit },
    },
    parseAs: "arrayBuffer",
  });
  const bytes = new Uint8Array(body ?? new ArrayBuffer(0));
  return { bytes, length: Number(response.headers.get("X-Length") ?? bytes.length) };
}

/** Follows the output of a run until the run is final. Returns whether it is; false: the connection ended. */
export async function followOutput(
  id: string,
  cursors: Record<string, number>,
  onOutput: (frame: Frame, bytes: Uint8Array) => void,
  signal: AbortSignal,
): Promise<boolean> {
  const { data: body } = await api.GET("/api/v1/runs/{id}/follow", {
    params: { path: { id }, query: { cursors: JSON.stringify(cursors) } },
    parseAs: "stream",
    signal,
  });
  const reader = (body as unknown as ReadableStream<Uint8Array>).getReader();
  const parser = new FrameParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return false;
    }
    for (const { frame, bytes } of parser.push(value)) {
      if (frame.kind === "end") {
        return true;
      }
      if (frame.kind === "output") {
        onOutput(frame, bytes);
      }
    }
  }
}

/** Reads the blobs of a tree, concatenated in the order of `digests`. */
async function readBlobs(manifest: string, digests: string[]): Promise<Uint8Array<ArrayBuffer>> {
  const body = await data(
    api.POST("/api/v1/blobs/fetch", { body: { manifest, digests }, parseAs: "arrayBuffer" }),
  );
  return joinBlobs(new Uint8Array(body));
}

/** All media of a run. */
export async function listMedia(id: string): Promise<MediaItem[]> {
  const pages = await allPages<Schemas["MediaOut"]>((after) =>
    data(
      api.GET("/api/v1/runs/{id}/media", {
        params: { path: { id }, query: after === null ? {} : { after } },
      }),
    ),
  );
  return pages.flatMap((page) => page.media);
}

export interface TreeFile {
  path: string;
  sizeBytes: number;
  /** The same for files with the same content; absent where it is not known. */
  content?: string;
  read: () => Promise<Uint8Array<ArrayBuffer>>;
  /** The beginning of a large file. */
  head: () => Promise<Uint8Array<ArrayBuffer>>;
  /** The bytes from `begin` to before `end`, where the server reads parts. */
  part?: (begin: number, end: number) => Promise<Uint8Array<ArrayBuffer>>;
  /** Where a player reads the file, if the server has it as audio or video. */
  address?: string;
}

/** Reads the list of files of a tree by its digest. */
export async function readManifest(manifest: string): Promise<TreeFile[]> {
  const text = new TextDecoder().decode(await readBlobs(manifest, [manifest]));
  const tree = JSON.parse(text) as { files: [string, number, number, string[]][] };
  return tree.files.map(([path, sizeBytes, , chunks]) => ({
    path,
    sizeBytes,
    content: chunks.join(" "),
    read: () => readBlobs(manifest, chunks),
    head: () => readBlobs(manifest, chunks.slice(0, 1)),
  }));
}

/** Reads the list of files in the working folder of a live run. */
export async function listWorkFiles(id: string): Promise<TreeFile[]> {
  const pages = await allPages<Schemas["FilesOut"]>((after) =>
    data(
      api.GET("/api/v1/runs/{id}/files", {
        params: { path: { id }, query: after === null ? {} : { after } },
      }),
    ),
  );
  const files = pages.flatMap((page) => page.files);
  const hasRanks = files.some((file) => file.rank > 0);
  return files.map((file) => {
    const { path, rank, encoded = false } = file;
    const query = { path, rank, encoded };
    return {
      path: hasRanks ? `rank ${rank}/${path}` : path,
      sizeBytes: file.size_bytes,
      read: async () => {
        const body = await data(
          api.GET("/api/v1/runs/{id}/file", { params: { path: { id }, query }, parseAs: "arrayBuffer" }),
        );
        return new Uint8Array(body);
      },
      head: async () => {
        const { data: body } = await api.GET("/api/v1/runs/{id}/file", {
          params: { path: { id }, query },
          parseAs: "stream",
        });
        return readBeginning(body as unknown as ReadableStream<Uint8Array>);
      },
    };
  });
}

const HEAD_BYTES = 1 << 20;

async function readBeginning(stream: ReadableStream<Uint8Array>): Promise<Uint8Array<ArrayBuffer>> {
  const reader = stream.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  while (size < HEAD_BYTES) {
    const { done, value } = await reader.read();
    if (done) {
      break;
    }
    parts.push(value);
    size += value.length;
  }
  await reader.cancel();
  const joined = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

/** Gives a command to a live run, and waits for its answer. Throws ApiError where the run refuses it. */
export async function giveCommand(id: string, body: Schemas["CommandIn"]): Promise<Command> {
  let command = await data(api.POST("/api/v1/runs/{id}/commands", { params: { path: { id } }, body }));
  if (command.state === "pending") {
    command = await data(
      api.GET("/api/v1/runs/{id}/commands/{number}", {
        params: { path: { id, number: String(command.number) }, query: { wait: ANSWER_S } },
      }),
    );
  }
  if (command.state === "refused") {
    throw new ApiError(409, "refused", command.answer);
  }
  return command;
}

const ANSWER_S = 5;
