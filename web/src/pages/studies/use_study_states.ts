/** The states of the studies of a list: read one after the other, and again only while they run. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, ApiError, data } from "@/api/client";
import { isFinal, type Run } from "@/api/runs";
import type { Study } from "./study_data";

const AT_A_TIME = 3;
const NEVER_AGAIN = new Set([400, 404, 409]); // a journal that is too long, a run that was deleted

export type States = ReadonlyMap<string, Study>;

/** Returns the studies that have to be read: unknown ones, and those that were not final when they were read. */
export function staleStudies(runs: readonly Run[], states: States, refused: ReadonlySet<string>): Run[] {
  return runs.filter((run) => {
    const known = states.get(run.id);
    return !refused.has(run.id) && (known === undefined || known.phase !== run.phase || !isFinal(run));
  });
}

/** Returns what is known by now. Each new `runs` reads what may have changed. */
export function useStudyStates(runs: readonly Run[]): States {
  const [states, setStates] = useState<States>(new Map());
  const refused = useRef(new Set<string>());
  const latest = useRef(states);
  latest.current = states;
  useEffect(() => {
    const abort = new AbortController();
    const waiting = staleStudies(runs, latest.current, refused.current);
    const work = async () => {
      for (let run = waiting.shift(); run && !abort.signal.aborted; run = waiting.shift()) {
        const { id } = run;
        try {
          const study = await data(
            api.GET("/api/v1/runs/{id}/study", { params: { path: { id } }, signal: abort.signal }),
          );
          setStates((old) => new Map(old).set(id, study));
        } catch (error) {
          if (error instanceof ApiError && NEVER_AGAIN.has(error.status)) {
            refused.current.add(id);
          } else {
            return; // the list itself shows that the server is away
          }
        }
      }
    };
    void Promise.all(Array.from({ length: AT_A_TIME }, work));
    return () => abort.abort();
  }, [runs]);
  return states;
}
