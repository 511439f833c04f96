/** The draft of a new run. It survives a reload of the page. */
import { EMPTY_FORM, formOf, type Form, type Param, type Values } from "./run_values";
import { isStudyFile, searchOf, type SearchForm } from "./search_values";

/** The code of the draft, on the server. `paths`: its files, for suggestions. */
export interface Code {
  kind: "upload" | "git" | "run";
  /** The name of the folder, the address, or the run. */
  name: string;
  digest: string | null;
  paths: string[];
  files: number;
  sizeBytes: number;
  leftOut: { path: string; reason: string }[];
  git: Record<string, unknown> | null;
  note: string;
}

/** `path`: where the script saved it itself; "" for one of Hopyard. */
export interface SavedCheckpoint {
  step: number;
  manifest: string;
  path: string;
}

/** An earlier run: the draft is a fork of it, and takes its environment. `params`: those of its start, or those
 * that held at the checkpoint. */
export interface Source {
  id: string;
  name: string;
  checkpoint: SavedCheckpoint | null;
  params: Param[];
}

export interface Draft {
  code: Code | null;
  source: Source | null;
  form: Form;
  /** Of a study; null for a run. */
  search: SearchForm | null;
  rest: Values;
  /** The text of the file, while that is edited in place of the form. */
  text: string | null;
}

export const EMPTY_DRAFT: Draft = {
  code: null,
  source: null,
  form: EMPTY_FORM,
  search: null,
  rest: {},
  text: null,
};
const NO_SOURCE: Source = { id: "", name: "", checkpoint: null, params: [] };
const NO_PATH = { path: "" };
const KEY = "hopyard-new-run";
const MAX_PATHS = 2000;

/** Returns what the form shows of a file, of a run or a study; null for one that it cannot show. */
export function parseFile(values: Values): Pick<Draft, "form" | "search" | "rest"> | null {
  const found = isStudyFile(values) ? searchOf(values) : { search: null, rest: values };
  const parsed = found && formOf(found.rest);
  return parsed && { ...parsed, search: found.search };
}

/** Returns a stored source, also that of an earlier version of the page. */
function sourceOf(stored: Partial<Source>): Source {
  const { checkpoint } = stored;
  return { ...NO_SOURCE, ...stored, checkpoint: checkpoint ? { ...NO_PATH, ...checkpoint } : null };
}

export function loadDraft(): Draft {
  try {
    const stored = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Partial<Draft> | null;
    return stored === null
      ? EMPTY_DRAFT
      : {
          ...EMPTY_DRAFT,
          ...stored,
          source: stored.source ? sourceOf(stored.source) : null,
          form: { ...EMPTY_FORM, ...stored.form },
        };
  } catch {
    return EMPTY_DRAFT; // of an earlier version of the page, or storage that is turned off
  }
}

export function saveDraft(draft: Draft): void {
  const code = draft.code && { ...draft.code, paths: draft.code.paths.slice(0, MAX_PATHS) };
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ ...draft, code }));
  } catch {
    // full, or turned off: the page works without
  }
}

export function forgetDraft(): void {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // turned off
  }
}
