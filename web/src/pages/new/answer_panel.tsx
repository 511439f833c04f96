import { Link } from "wouter-preact";
import { Button } from "@/parts/button";
import { fieldOf } from "./run_values";
import { StudySummary } from "./study_summary";
import type { Answer } from "./use_answer";
import fields from "@/parts/form.module.css";
import styles from "./new.module.css";

/** The answer of the queue, and the button that starts the run. */
export function AnswerPanel({
  answer,
  isBusy,
  isSending,
  isStudy,
  isFormEmpty,
  onStart,
}: {
  answer: Answer;
  isBusy: boolean;
  isSending: boolean;
  isStudy: boolean;
  isFormEmpty: boolean;
  onStart: () => void;
}) {
  const { preview, problem, composed } = answer;
  const isChecking = isBusy && !isFormEmpty;
  const kind = isChecking ? "" : problem ? "bad" : (preview?.starts ?? "");
  return (
    <aside class={styles["answer"]} aria-label="the queue's answer">
      <div class={`${styles["verdict"]} ${styles[kind] ?? ""}`} role="status" aria-busy={isChecking}>
        {isChecking ? "Checking…" : verdict(answer, isStudy)}
      </div>
      <div class={`${styles["details"]} ${isChecking ? styles["busy"] : ""}`}>
        {problem && fieldOf(problem.path) === "" && (
          <div class={fields["problem"]} role="alert">
            {problem.path !== "" && <span class={fields["mono"]}>{problem.path}</span>}
            <span>{problem.message}</span>
            {problem.hints.map((hint) => (
              <span key={hint}>→ {hint}</span>
            ))}
          </div>
        )}
        {preview && !problem && (
          <div>
            {preview.queue && (
              <p class={fields["help"]}>
                in queue {preview.queue}
                {typeof preview.position === "number" &&
                  `, position ${preview.position} of ${preview.waiting ?? 0}`}
              </p>
            )}
            {preview.detail && <p>{preview.detail}</p>}
            {preview.hints?.map((hint) => (
              <p key={hint}>→ {hint}</p>
            ))}
            {preview.blocked_by && preview.blocked_by.length > 0 && (
              <p class={fields["help"]}>
                Waits for{" "}
                {preview.blocked_by.map((each, index) => (
                  <span key={each.id}>
                    {index > 0 && ", "}
                    {each.kind === "run" ? (
                      <Link href={`/runs/${each.id}`}>{each.name}</Link>
                    ) : (
                      `${each.kind} ${each.name}`
                    )}
                  </span>
                ))}
              </p>
            )}
            {preview.unknown && <p class={fields["help"]}>{preview.unknown}</p>}
            {preview.what_if && preview.what_if.length > 0 && (
              <>
                <p>It would start</p>
                <ul>
                  {preview.what_if.map((each) => (
                    <li key={each.text}>{each.text}</li>
                  ))}
                </ul>
              </>
            )}
          </div>
        )}
        {composed?.study && <StudySummary study={composed.study} />}
        {composed?.notices?.map((notice) => (
          <p key={notice} class={fields["help"]}>
            {notice}
          </p>
        ))}
      </div>
      <Button
        kind="primary"
        disabled={isBusy || isSending || preview === null || preview.starts === "never"}
        onClick={onStart}
      >
        {isSending
          ? "Starting…"
          : `${preview?.starts === "later" ? "Submit" : "Start"} the ${isStudy ? "study" : "run"}`}
      </Button>
    </aside>
  );
}

function verdict({ preview, problem }: Answer, isStudy: boolean): string {
  if (problem) {
    return fieldOf(problem.path) === ""
      ? `This ${isStudy ? "study" : "run"} is not complete`
      : "See the field marked red";
  }
  if (preview) {
    const { sentence } = preview;
    return isStudy ? `The first trial ${sentence}` : sentence.charAt(0).toUpperCase() + sentence.slice(1);
  }
  return "Choose the code and a command: the queue then says when the run would start";
}
