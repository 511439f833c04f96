import { useEffect, useRef, useState } from "preact/hooks";
import { paramProblem, type Param, type ParamKind } from "./run_values";
import { type Problem, ProblemText, RemoveButton } from "@/parts/form_field";
import { Button } from "@/parts/button";
import fields from "@/parts/form.module.css";

const KINDS: readonly ParamKind[] = ["number", "text", "yes/no", "nothing"];

/** The parameters with their types. `known`: names that the script takes. `searched`: names with a range. */
export function ParamRows({
  params,
  known,
  searched,
  problem,
  onChange,
}: {
  params: readonly Param[];
  known: readonly string[];
  searched: readonly string[];
  problem: Problem | null;
  onChange: (params: Param[]) => void;
}) {
  const change = (index: number, part: Partial<Param>) =>
    onChange(params.map((each, at) => (at === index ? { ...each, ...part } : each)));
  const rows = useRef<HTMLDivElement>(null);
  const [isAdded, setAdded] = useState(false);
  useEffect(() => {
    if (isAdded) {
      setAdded(false);
      const inputs = [...(rows.current?.querySelectorAll<HTMLInputElement>("[data-param] input") ?? [])];
      inputs
        .slice(-2)
        .find((input) => input.value === "")
        ?.focus(); // the name, or the value of a known one
    }
  }, [isAdded]);
  const add = (name: string) => {
    onChange([...params, { name, kind: "number", text: "" }]);
    setAdded(true);
  };
  const used = new Set(params.map(({ name }) => name));
  const free = known.filter((name) => !used.has(name));
  const bad = problem === null ? "" : problem.path.replace(/^params\.?/, "");
  return (
    <div class={fields["rows"]} ref={rows}>
      {params.map((param, index) => {
        const own = paramProblem(param);
        const found = own
          ? { path: "", message: own, hints: [] }
          : bad !== "" && bad === param.name
            ? problem
            : null;
        const label = param.name || "new parameter";
        return (
          <div key={index}>
            <div class={fields["row"]} data-param>
              <input
                class={fields["mono"]}
                aria-label="name of the parameter"
                placeholder="name"
                value={param.name}
                spellcheck={false}
                aria-invalid={found !== null}
                onInput={(event) => change(index, { name: event.currentTarget.value })}
              />
              <select
                aria-label={`type of ${label}`}
                value={param.kind}
                onChange={(event) => {
                  const kind = event.currentTarget.value as ParamKind;
                  change(index, {
                    kind,
                    text: kind === "yes/no" ? "yes" : kind === "nothing" ? "" : param.text,
                  });
                }}
              >
                {KINDS.map((kind) => (
                  <option key={kind}>{kind}</option>
                ))}
              </select>
              {param.kind === "yes/no" ? (
                <select
                  class={fields["wide"]}
                  aria-label={`value of ${label}`}
                  value={param.text}
                  onChange={(event) => change(index, { text: event.currentTarget.value })}
                >
                  <option>yes</option>
                  <option>no</option>
                </select>
              ) : (
                <input
                  class={`${fields["mono"]} ${fields["wide"]}`}
                  aria-label={`value of ${label}`}
                  placeholder={param.kind === "nothing" ? "null" : "value"}
                  disabled={param.kind === "nothing"}
                  value={param.text}
                  spellcheck={false}
                  aria-invalid={found !== null}
                  onInput={(event) => change(index, { text: event.currentTarget.value })}
                />
              )}
              <RemoveButton
                label={`remove ${label}`}
                onClick={() => onChange(params.filter((_, at) => at !== index))}
              />
            </div>
            {searched.includes(param.name.trim()) && (
              <span class={fields["help"]}>Not used: its range below replaces this value.</span>
            )}
            <ProblemText problem={found} />
          </div>
        );
      })}
      {problem !== null && !params.some(({ name }) => bad !== "" && name === bad) && (
        <ProblemText problem={problem} />
      )}
      <div class={fields["chips"]}>
        <Button onClick={() => add("")}>Add a parameter</Button>
        {free.length > 0 && "The script takes"}
        {free.slice(0, 24).map((name) => (
          <button key={name} type="button" class={fields["chip"]} onClick={() => add(name)}>
            {name}
          </button>
        ))}
      </div>
    </div>
  );
}
