/** The server's answer to a draft: its spec, its problems, and when it would start. */
import { useEffect, useState } from "preact/hooks";
import { api, ApiError, data, type Schemas } from "@/api/client";
import type { Problem } from "@/parts/form_field";
import type { Draft, SavedCheckpoint } from "./draft";
import { valuesOf } from "./run_values";
import { studyValues } from "./search_values";

export interface Answer {
  spec: Schemas["SpecIn"] | null;
  composed: Schemas["ComposeOut"] | null;
  preview: Schemas["PreviewOut"] | null;
  problem: Problem | null;
  /** The code is no longer on the server. */
  isCodeLost: boolean;
}

const NOTHING: Answer = { spec: null, composed: null, preview: null, problem: null, isCodeLost: false };
const WAIT_MS = 350; // after the last change
const AGAIN_MS = 10_000;

/** Returns the text of the file that a draft describes. */
export function fileOf(draft: Draft): string {
  const run = valuesOf(draft.form, draft.rest);
  return draft.text ?? JSON.stringify(draft.search === null ? run : studyValues(run, draft.search));
}

/** Asks the server about a draft after each change, and again while the page is open. `isBusy`: the answer is of
 *  an earlier state. */
export function useAnswer(draft: Draft): Answer & { isBusy: boolean } {
  const body = JSON.stringify({
    file: fileOf(draft),
    code: draft.code?.digest ?? null,
    git: draft.code?.git ?? null,
    source: draft.source?.id ?? null,
  });
  const checkpoint = JSON.stringify(draft.source?.checkpoint ?? null);
  const isEmpty = draft.text === null && draft.form.command.trim() === "";
  const [state, setState] = useState<{ key: string; answer: Answer }>({ key: "", answer: NOTHING });
  const key = isEmpty ? "" : body + checkpoint;
  useEffect(() => {
    if (key === "") {
      setState({ key, answer: NOTHING });
      return;
    }
    const stop = new AbortController();
    let timer = 0;
    const ask = (composed: Schemas["ComposeOut"] | null) => {
      answerFor(body, draft.source, composed, stop.signal)
        .then((answer) => {
          setState({ key, answer });
          timer = window.setTimeout(() => ask(answer.composed), AGAIN_MS);
        })
        .catch((error: unknown) => {
          if (!stop.signal.aborted) {
            setState({ key, answer: { ...NOTHING, ...toProblem(error) } });
            timer = window.setTimeout(() => ask(null), AGAIN_MS);
          }
        });
    };
    timer = window.setTimeout(() => ask(null), WAIT_MS);
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [key]);
  return { ...state.answer, isBusy: state.key !== key };
}

async function answerFor(
  body: string,
  source: Draft["source"],
  known: Schemas["ComposeOut"] | null,
  signal: AbortSignal,
): Promise<Answer> {
  const composed =
    known ??
    (await data(
      api.POST("/api/v1/runs/compose", { body: JSON.parse(body) as Schemas["ComposeIn"], signal }),
    ));
  if (!composed.spec) {
    return { ...NOTHING, composed, problem: composed.problem ?? null };
  }
  const checkpoint = source?.checkpoint;
  const isFork = source !== null && !composed.study; // a study takes the environment of a run, and is no fork of it
  const spec = {
    ...composed.spec,
    ...(isFork && { forked_from: source.id }),
    ...(isFork && checkpoint && startFrom(source.id, checkpoint)),
  } as unknown as Schemas["SpecIn"];
  const askQueue = (of: Schemas["SpecIn"]) =>
    data(api.POST("/api/v1/runs/preview", { body: { spec: of }, signal }));
  try {
    let preview = await askQueue(spec);
    const trial = spec.study?.["trial"] as unknown;
    if (trial && preview.starts !== "never") {
      preview = await askQueue(trial as Schemas["SpecIn"]); // the study itself needs next to nothing
    }
    return { ...NOTHING, spec, composed, preview };
  } catch (error) {
    if (signal.aborted) {
      throw error;
    }
    return { ...NOTHING, composed, ...toProblem(error) };
  }
}

/** Returns the fields of a spec that start it from a checkpoint. One that the script saved itself is a folder of
 *  files, which stand where the script left them. */
export function startFrom(run: string, { step, manifest, path }: SavedCheckpoint) {
  return path === "" ? { resume: { run, step, manifest } } : { initial_folder: manifest };
}

function toProblem(error: unknown): { problem: Problem; isCodeLost: boolean } {
  if (!(error instanceof ApiError)) {
    return { problem: { path: "", message: String(error), hints: [] }, isCodeLost: false };
  }
  const found = /^([a-z_]+(?:\.[\w.-]+)?): /.exec(error.message);
  const isCodeLost = error.code === "missing_blobs";
  return {
    problem: {
      path: found?.[1] ?? placeOf(error),
      message: found ? error.message.slice(found[0].length) : error.message,
      hints: isCodeLost ? ["choose the files again"] : error.hints,
    },
    isCodeLost,
  };
}

/** The key that an error without a path is about. */
function placeOf(error: ApiError): string {
  return /\bdataset\b/.test(error.message) ? "datasets" : /\bqueue\b/.test(error.message) ? "queue" : "";
}
