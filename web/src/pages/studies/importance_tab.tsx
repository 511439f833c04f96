import { Empty } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { formatCount } from "@/text/format";
import type { StudyView } from "./study_data";
import styles from "./studies.module.css";

/** How much each param decides whether a trial is among the best. */
export function ImportanceTab({ view: { study, trials } }: { view: StudyView }) {
  const results = trials.filter((trial) => trial.best !== null).length;
  if (study.importance.length === 0) {
    return (
      <Empty title="The importance of parameters is not known yet">
        <p>
          It needs eight trials with different results, and two for each parameter.{" "}
          {formatCount(results, "trial has", "trials have")} a result.
        </p>
      </Empty>
    );
  }
  return (
    <section class={page["panel"]} aria-label="importance of parameters">
      <h2>What decides whether a trial is among the best</h2>
      <ul class={styles["bars"]}>
        {study.importance.map(({ param, share }) => (
          <li key={param}>
            <span class={styles["name"]}>{param}</span>
            <div
              class={styles["track"]}
              role="meter"
              aria-label={param}
              aria-valuemin={0}
              aria-valuemax={1}
              aria-valuenow={share}
            >
              <span style={{ width: `${100 * share}%` }} />
            </div>
            <span>{(100 * share).toFixed(1)}%</span>
          </li>
        ))}
      </ul>
      <p class={page["quiet"]}>
        PED-ANOVA compares the values in the best tenth of the trials with those in all {results} trials.
        {study.importance_uncertain && " With fewer than 60 results, the order may be chance."} A searcher
        that prefers good values makes their parameter look less important.
      </p>
    </section>
  );
}
