/** Reads the state and the trials of a study, and only what is new of them while it runs. */
import { api, data, type Schemas } from "@/api/client";
import { allPages, getRun, type Run } from "@/api/runs";

export type Study = Schemas["StudyOut"];
export type Trial = Schemas["TrialOut"];
export type Unit = Schemas["UnitOut"];

export interface StudyView {
  run: Run;
  study: Study;
  trials: readonly Trial[];
}

const MAX_TRIAL_RUNS = 20; // pages of a thousand

/** Returns the trials with the changed ones in their places, and new ones at the end. */
export function mergeTrials(known: readonly Trial[], changed: readonly Trial[]): Trial[] {
  const byName = new Map(known.map((trial) => [trial.trial, trial]));
  for (const trial of changed) {
    byName.set(trial.trial, trial);
  }
  return [...byName.values()];
}

/** Reads a study again and again: a later read asks only for what has changed. */
export class StudyReader {
  private last: StudyView | null = null;

  constructor(private readonly reference: string) {}

  /** The id of the run, once it was read. */
  get id(): string | null {
    return this.last?.run.id ?? null;
  }

  async read(): Promise<StudyView> {
    const run = await getRun(this.reference);
    const path = { id: run.id };
    const study = await data(api.GET("/api/v1/runs/{id}/study", { params: { path } }));
    const last = this.last;
    // the end of a study changes its trials without a record
    const isSame = last !== null && last.run.phase === run.phase && study.records >= last.study.records;
    const since = isSame ? last.study.records : 0;
    let trials = isSame ? last.trials : [];
    if (!isSame || study.records > since) {
      const pages = await allPages<Schemas["TrialsOut"]>((after) =>
        data(
          api.GET("/api/v1/runs/{id}/study/trials", {
            params: { path, query: { since, after: after ?? 0 } },
          }),
        ),
      );
      trials = mergeTrials(
        trials,
        pages.flatMap((page) => page.trials),
      );
    }
    this.last = { run, study, trials };
    return this.last;
  }
}

/** Reads the units of a study again and again. */
export class UnitsReader {
  private units: readonly Unit[] = [];

  constructor(private readonly id: string) {}

  async read(): Promise<readonly Unit[]> {
    const pages = await allPages<Schemas["UnitsOut"]>((after) =>
      data(
        api.GET("/api/v1/runs/{id}/study/units", {
          params: { path: { id: this.id }, query: { after: after ?? this.units.length } },
        }),
      ),
    );
    const found = pages.flatMap((page) => page.units);
    if ((pages[0]?.total ?? 0) < this.units.length) {
      this.units = []; // an earlier attempt shipped more of its journal: the next read has all
      return this.read();
    }
    if (found.length > 0) {
      this.units = [...this.units, ...found];
    }
    return this.units;
  }
}

/** Reads the runs of the trials of a study. */
export async function readTrialRuns(id: string): Promise<Run[]> {
  const runs: Run[] = [];
  let before: string | null = null;
  for (let page = 0; page < MAX_TRIAL_RUNS; page += 1) {
    const found: Schemas["RunsOut"] = await data(
      api.GET("/api/v1/runs", {
        params: { query: { parent: id, limit: 1000, ...(before === null ? {} : { before }) } },
      }),
    );
    runs.push(...found.runs);
    before = found.next;
    if (before === null) {
      break;
    }
  }
  return runs;
}

/** Whether the value of one trial is better than that of another. */
export function isBetter(goal: Study["goal"], one: number, two: number): boolean {
  return goal === "max" ? one > two : one < two;
}

/** Returns the trials, the best first; trials without a value come last. */
export function ranked(study: Study, trials: readonly Trial[]): Trial[] {
  const sign = study.goal === "max" ? -1 : 1;
  return [...trials].sort((one, two) => {
    if (one.best === null || two.best === null) {
      return Number(one.best === null) - Number(two.best === null);
    }
    return sign * (one.best - two.best);
  });
}

/** Returns how many trials have ended. */
export function endedTrials(study: Study): number {
  const { completed = 0, stopped = 0, failed = 0 } = study.counts;
  return completed + stopped + failed;
}

/** The names of all params, in the order of their first trials. */
export function paramNames(trials: readonly Trial[]): string[] {
  return [...new Set(trials.flatMap((trial) => Object.keys(trial.params)))];
}

/** The params of the best value of a trial; its current ones before its first report. */
export function shownParams(trial: Trial): Trial["params"] {
  return trial.best_params ?? trial.params;
}

/** Returns a domain of the search space, as it was submitted. */
export function spaceOf(run: Run): { name: string; log?: boolean }[] {
  const space: unknown = (run.spec.study as Record<string, unknown> | null | undefined)?.["space"];
  return Array.isArray(space) ? (space as { name: string; log?: boolean }[]) : [];
}
