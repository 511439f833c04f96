import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import fields from "./form.module.css";

/** What is wrong with a field, by the key of the file that it is about. */
export interface Problem {
  path: string;
  message: string;
  hints: readonly string[];
}

/** What is wrong with a field, and what to do. */
export function ProblemText({ id, problem }: { id?: string; problem: Problem | null }) {
  return problem === null ? null : (
    <div class={fields["problem"]} role="alert" id={id}>
      <span>{problem.message}</span>
      {problem.hints.map((hint) => (
        <span key={hint}>→ {hint}</span>
      ))}
    </div>
  );
}

/** A text of the form with its label. `suggestions`: shown while one types. */
export function TextField({
  label,
  value,
  onChange,
  placeholder = "",
  help,
  problem = null,
  suggestions = [],
  isMono = false,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  help?: ComponentChildren;
  problem?: Problem | null;
  suggestions?: readonly string[];
  isMono?: boolean;
}) {
  const id = useId();
  return (
    <div class={fields["field"]}>
      <label for={id}>{label}</label>
      <input
        id={id}
        class={isMono ? fields["mono"] : undefined}
        value={value}
        placeholder={placeholder}
        list={suggestions.length > 0 ? `${id}-list` : undefined}
        autocomplete="off"
        spellcheck={false}
        aria-invalid={problem !== null}
        aria-describedby={problem === null ? undefined : `${id}-problem`}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {suggestions.length > 0 && (
        <datalist id={`${id}-list`}>
          {suggestions.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
      {help !== undefined && <span class={fields["help"]}>{help}</span>}
      <ProblemText id={`${id}-problem`} problem={problem} />
    </div>
  );
}

export function RemoveButton({ label, onClick }: { label: string; onClick: () => void }) {
  return (
    <button type="button" class={fields["remove"]} aria-label={label} onClick={onClick}>
      ✕
    </button>
  );
}
