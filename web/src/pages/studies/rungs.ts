/** The rungs of successive halving: which trials were compared at which budget, and which were promoted. */
import { isBetter, type Study, type Trial } from "./study_data";

export interface RungEntry {
  trial: Trial;
  value: number | null;
  outcome: Trial["rungs"][number]["outcome"] | "training";
}

export interface Rung {
  budget: number;
  /** The best first; failed trials and those that train for it are last. */
  entries: RungEntry[];
  /** The worst value that was promoted; null before the first promotion. */
  bound: number | null;
}

/** Trials that began at the same budget. Hyperband has several brackets, ASHA has one. */
export interface Bracket {
  rungs: Rung[];
  trials: number;
}

/** Whether the study compares trials at several budgets: more than one budget was requested of a trial. */
export function hasRungs(study: Study, trials: readonly Trial[]): boolean {
  return (
    study.searcher !== "pbt" &&
    trials.some((trial) => trial.rungs.some((rung) => rung.budget < study.max_budget))
  );
}

/** Returns the brackets, the one with the smallest first budget first. */
export function listBrackets(study: Study, trials: readonly Trial[]): Bracket[] {
  const groups = new Map<number, Trial[]>();
  for (const trial of trials) {
    const first = trial.rungs[0]?.budget ?? trial.budget;
    groups.set(first, [...(groups.get(first) ?? []), trial]);
  }
  return [...groups]
    .sort(([one], [two]) => one - two)
    .map(([, members]) => ({ trials: members.length, rungs: listRungs(study, members) }));
}

function listRungs(study: Study, trials: readonly Trial[]): Rung[] {
  const rungs = new Map<number, RungEntry[]>();
  const add = (budget: number, entry: RungEntry) => {
    rungs.set(budget, [...(rungs.get(budget) ?? []), entry]);
  };
  for (const trial of trials) {
    for (const { budget, value, outcome } of trial.rungs) {
      // there is no larger budget to promote it to
      const isLast = outcome === "stopped" && value !== null && budget >= study.max_budget;
      add(budget, { trial, value, outcome: isLast ? "completed" : outcome });
    }
    if (trial.budget > (trial.rungs.at(-1)?.budget ?? 0)) {
      // it did not reach the end of its newest budget
      const outcome =
        trial.state === "training" ? "training" : trial.state === "failed" ? "failed" : "stopped";
      add(trial.budget, { trial, value: outcome === "stopped" ? trial.value : null, outcome });
    }
  }
  return [...rungs]
    .sort(([one], [two]) => one - two)
    .map(([budget, entries]) => ({
      budget,
      entries: sortEntries(study, entries),
      bound: boundOf(study, entries),
    }));
}

function sortEntries(study: Study, entries: readonly RungEntry[]): RungEntry[] {
  const rank = (entry: RungEntry) => (entry.value !== null ? 0 : entry.outcome === "training" ? 1 : 2);
  return [...entries].sort((one, two) => {
    if (one.value === null || two.value === null || one.value === two.value) {
      return rank(one) - rank(two);
    }
    return isBetter(study.goal, one.value, two.value) ? -1 : 1;
  });
}

function boundOf(study: Study, entries: readonly RungEntry[]): number | null {
  return entries.reduce<number | null>((bound, { value, outcome }) => {
    const isLower = value !== null && (bound === null || isBetter(study.goal, bound, value));
    return outcome === "promoted" && isLower ? value : bound;
  }, null);
}
