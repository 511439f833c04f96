import type { Schemas } from "@/api/client";
import fields from "@/parts/form.module.css";
import { formatNumber } from "@/text/format";
import styles from "./new.module.css";

/** What a study would do, and its first trials. */
export function StudySummary({ study }: { study: Schemas["ComposedStudyOut"] }) {
  const amount = (budget: number) =>
    `${budget} ${budget === 1 ? study.budget_unit.replace(/s$/, "") : study.budget_unit}`;
  const trials = study.trials === null ? "as many trials as needed" : `at most ${study.trials} trials`;
  return (
    <div role="group" aria-label="the study">
      <p>
        {study.searcher}: {study.goal === "max" ? "the largest" : "the smallest"}{" "}
        <span class={fields["mono"]}>{study.metric}</span> of {trials}, {study.concurrent} at a time
        {study.budget !== null && `, each of at most ${amount(study.budget)}`}
      </p>
      {study.first_trials.length > 0 && (
        <>
          <p class={fields["help"]}>The first trials</p>
          <ol class={styles["trials"]}>
            {study.first_trials.map(({ trial, params, budget }) => (
              <li key={trial}>
                {Object.entries(params)
                  .map(([name, value]) => `${name}=${textOf(value)}`)
                  .join("  ")}
                {study.budget !== null && budget !== study.budget && ` · ${amount(budget)} first`}
              </li>
            ))}
          </ol>
        </>
      )}
    </div>
  );
}

function textOf(value: unknown): string {
  return typeof value === "number" ? formatNumber(value) : String(value);
}
