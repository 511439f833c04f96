import { Empty } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { formatCount, formatNumber } from "@/text/format";
import { hasRungs, listBrackets } from "./rungs";
import type { StudyView } from "./study_data";
import styles from "./studies.module.css";

/** The trials promoted at which budget, and with which value. */
export function RungsTab({
  view: { study, trials },
  onTrial,
}: {
  view: StudyView;
  onTrial: (trial: string) => void;
}) {
  if (!hasRungs(study, trials)) {
    return (
      <Empty title="This study has no rungs yet" command="searcher: asha">
        <p>
          The searchers asha, halving, hyperband and bohb compare trials at growing budgets and promote the
          best.
        </p>
      </Empty>
    );
  }
  const brackets = listBrackets(study, trials);
  const Heading = brackets.length > 1 ? "h3" : "h2";
  return (
    <>
      {brackets.map((bracket, index) => (
        <section key={index} class={styles["bracket"]} aria-label={`bracket ${index}`}>
          {brackets.length > 1 && (
            <h2>
              Bracket {index}: {formatCount(bracket.trials, "trial")} from {study.unit}{" "}
              {bracket.rungs[0]?.budget}
            </h2>
          )}
          <div class={styles["rungs"]}>
            {bracket.rungs.map((rung) => (
              <section key={rung.budget} class={page["panel"]} aria-label={`rung of ${rung.budget}`}>
                <Heading>
                  {study.unit} {rung.budget}
                </Heading>
                <p class={page["quiet"]}>
                  {rung.entries.filter((entry) => entry.outcome === "promoted").length} of{" "}
                  {rung.entries.length} promoted
                  {rung.bound !== null && `, down to ${formatNumber(rung.bound)}`}
                </p>
                <ol
                  class={styles["entries"]}
                  tabIndex={0}
                  aria-label={`trials at ${study.unit} ${rung.budget}`}
                >
                  {rung.entries.map(({ trial, value, outcome }) => (
                    <li key={trial.trial} class={styles[outcome]}>
                      <button type="button" onClick={() => onTrial(trial.trial)}>
                        trial {trial.trial}
                      </button>
                      <span class={styles["value"]}>{value === null ? "–" : formatNumber(value)}</span>
                      <span class={styles["outcome"]}>{outcome}</span>
                    </li>
                  ))}
                </ol>
              </section>
            ))}
          </div>
        </section>
      ))}
    </>
  );
}
