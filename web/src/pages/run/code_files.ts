/** The paths of the code of a run, and the place in it that raised. */
import { useEffect, useState } from "preact/hooks";
import { listOutputStreams, readManifest, readRaw, type Run } from "@/api/runs";
import { plainText } from "@/text/ansi";
import { hasTraceback, raisingPlace, type CodePlace } from "@/text/traceback";

const TAIL_BYTES = 64 << 10; // of an output, in which the last traceback is looked for
const MAX_STREAMS = 8; // of the last attempt

/** Returns the paths of the code once they are wanted; null: not there yet, or there are none. */
export function useCodeFiles(run: Run, isWanted: boolean): ReadonlySet<string> | null {
  const [files, setFiles] = useState<ReadonlySet<string> | null>(null);
  const digest = run.spec.code ?? null;
  const reads = isWanted && digest !== null && files === null;
  useEffect(() => {
    let isOver = false;
    if (reads) {
      readPaths(digest)
        .then((found) => !isOver && setFiles(found))
        .catch(() => undefined); // the log has no links then
    }
    return () => {
      isOver = true;
    };
  }, [digest, reads]);
  return files;
}

async function readPaths(digest: string): Promise<ReadonlySet<string>> {
  return new Set((await readManifest(digest)).map((file) => file.path));
}

/** Returns where in its code an ended run raised, by the end of its output; null: that is unknown. */
export async function findRaisingPlace(run: Run): Promise<CodePlace | null> {
  const attempt = run.attempts?.at(-1)?.id;
  if (!run.spec.code || attempt === undefined) {
    return null;
  }
  const streams = (await listOutputStreams(run.id)).filter(
    (each) => each.attempt === attempt && each.stream === "stderr",
  );
  const outputs: string[] = [];
  for (const key of streams.slice(0, MAX_STREAMS)) {
    const { length } = await readRaw(run.id, key, 0, 0);
    if (length > 0) {
      const { bytes } = await readRaw(run.id, key, Math.max(0, length - TAIL_BYTES), TAIL_BYTES);
      const text = new TextDecoder().decode(bytes);
      outputs.push(text.split("\n").map(plainText).join("\n"));
    }
  }
  if (!outputs.some(hasTraceback)) {
    return null;
  }
  const files = await readPaths(run.spec.code);
  return outputs.map((output) => raisingPlace(output, files)).find((place) => place !== null) ?? null;
}
