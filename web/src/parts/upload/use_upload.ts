/** An upload of a page: its progress, its error, and how it ends. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { ChosenFile } from "./select_files";
import { packTree, startHasher, uploadTree, type Hash, type Tree } from "./tree";

/** What happens at present. `total`: 0 while it is unknown. */
export interface Step {
  text: string;
  done: number;
  total: number;
}

export interface Work {
  /** Hashes the files and uploads the bytes that the server lacks. Returns how many these were. */
  upload: (files: readonly ChosenFile[]) => Promise<{ tree: Tree; sent: number }>;
  /** Uploads the bytes of a packed tree that the server lacks. */
  uploadAgain: (tree: Tree) => Promise<number>;
  setStep: (step: Step) => void;
  signal: AbortSignal;
}

/** Returns the state of an upload. `run` starts one; it ends with the page, or by `cancel`, which is no error. */
export function useUpload() {
  const [step, setStep] = useState<Step | null>(null);
  const [error, setError] = useState<unknown>(null);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const isBusy = step !== null;
  useEffect(() => {
    if (isBusy) {
      const warn = (event: BeforeUnloadEvent) => event.preventDefault();
      window.addEventListener("beforeunload", warn);
      return () => window.removeEventListener("beforeunload", warn);
    }
    return undefined;
  }, [isBusy]);

  const run = async (work: (tools: Work) => Promise<void>): Promise<void> => {
    const { signal } = (stop.current = new AbortController());
    setError(null);
    const show = (next: Step) => {
      if (!signal.aborted) {
        setStep(next);
      }
    };
    show({ text: "Looking through the files", done: 0, total: 0 });
    const hasher = startHasher();
    try {
      await work({ ...tools(hasher.hash, show, signal), setStep: show, signal });
    } catch (failure) {
      if (!signal.aborted) {
        setError(failure);
      }
    } finally {
      hasher.stop();
      if (stop.current.signal === signal) {
        setStep(null);
      }
    }
  };
  const cancel = () => {
    stop.current?.abort();
    setStep(null); // files of a drop that are still being listed are not waited for
  };
  return { step, error, run, cancel };
}

function tools(
  hash: Hash,
  setStep: (step: Step) => void,
  signal: AbortSignal,
): Pick<Work, "upload" | "uploadAgain"> {
  const uploadAgain = async (tree: Tree) => {
    setStep({ text: "Comparing with the server", done: 0, total: 0 });
    return uploadTree(tree, (done, total) => setStep({ text: "Uploading", done, total }), signal);
  };
  return {
    uploadAgain,
    upload: async (files) => {
      const tree = await packTree(
        files,
        hash,
        (done, total) => setStep({ text: "Reading", done, total }),
        signal,
      );
      return { tree, sent: await uploadAgain(tree) };
    },
  };
}
