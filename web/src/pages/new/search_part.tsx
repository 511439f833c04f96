import { ProblemText, RemoveButton, TextField, type Problem } from "@/parts/form_field";
import fields from "@/parts/form.module.css";
import { Button } from "@/parts/button";
import {
  NEW_RANGE,
  NEW_SEARCH,
  rangeProblem,
  RUNG_SEARCHERS,
  rungsText,
  type RangeKind,
  type RangeRow,
  type SearchForm,
} from "./search_values";
import styles from "./search_part.module.css";

const KINDS: readonly [RangeKind, string][] = [
  ["real", "real number"],
  ["whole", "whole number"],
  ["choice", "choice"],
  ["expression", "as in a file"],
];
// the built-in searchers (`hopyard.domain.searchers`), with what each is for
const SEARCHERS: readonly [string, string][] = [
  ["", "the default: random, or all combinations of few"],
  ["random", "random"],
  ["grid", "grid: every combination once"],
  ["asha", "asha: stops weak trials early"],
  ["hyperband", "hyperband: short and long trials"],
  ["halving", "halving: repeatable, in rounds"],
  ["bohb", "bohb: hyperband that learns"],
  ["tpe", "tpe: learns from earlier trials"],
  ["gp", "gp: few, expensive trials"],
  ["cmaes", "cmaes: many numbers"],
  ["pbt", "pbt: changes values while training"],
  ["median", "median: stops below the median"],
];
const MAX_CHIPS = 24;

/** The search of a study: what is tried, how it is judged, and how many trials there are. `known`: parameters
 *  that the script takes. */
export function SearchPart({
  search,
  known,
  problemOf,
  onChange,
}: {
  search: SearchForm | null;
  known: readonly string[];
  problemOf: (field: string) => Problem | null;
  onChange: (search: SearchForm | null) => void;
}) {
  return (
    <section class={fields["section"]} aria-label="search">
      <h2>Search</h2>
      <label class={styles["switch"]}>
        <input
          type="checkbox"
          checked={search !== null}
          onChange={(event) => onChange(event.currentTarget.checked ? NEW_SEARCH : null)}
        />
        Search hyperparameters: each trial is a run with other values
      </label>
      {search !== null && (
        <SearchFields search={search} known={known} problemOf={problemOf} onChange={onChange} />
      )}
    </section>
  );
}

function SearchFields({
  search,
  known,
  problemOf,
  onChange,
}: {
  search: SearchForm;
  known: readonly string[];
  problemOf: (field: string) => Problem | null;
  onChange: (search: SearchForm) => void;
}) {
  const change = (part: Partial<SearchForm>) => onChange({ ...search, ...part });
  const isOther = !SEARCHERS.some(([name]) => name === search.searcher);
  return (
    <>
      <div class={fields["field"]}>
        <span class={fields["legend"]}>Ranges</span>
        <RangeRows
          rows={search.space}
          known={known}
          problem={problemOf("space")}
          onChange={(space) => change({ space })}
        />
      </div>
      <div class={fields["grid"]}>
        <TextField
          label="Metric"
          value={search.metric}
          onChange={(metric) => change({ metric })}
          placeholder="val_acc"
          help="hop.log(val_acc=…, step=epoch) reports it"
          problem={problemOf("metric")}
          isMono
        />
        <div class={fields["field"]}>
          <label for="new-goal">Direction</label>
          <select
            id="new-goal"
            value={search.goal}
            aria-invalid={problemOf("goal") !== null}
            onChange={(event) => change({ goal: event.currentTarget.value as SearchForm["goal"] })}
          >
            <option value="">as its name implies</option>
            <option value="max">larger is better</option>
            <option value="min">smaller is better</option>
          </select>
          <ProblemText problem={problemOf("goal")} />
        </div>
        <TextField
          label="Trials"
          value={search.trials}
          onChange={(trials) => change({ trials })}
          placeholder="as many as needed"
          help="at most"
          problem={problemOf("trials")}
        />
        <TextField
          label="Parallel trials"
          value={search.concurrent}
          onChange={(concurrent) => change({ concurrent })}
          placeholder="4"
          help="at a time"
          problem={problemOf("concurrent")}
        />
      </div>
      <div class={fields["grid"]}>
        <div class={fields["field"]}>
          <label for="new-searcher">Searcher</label>
          <select
            id="new-searcher"
            value={search.searcher}
            aria-invalid={problemOf("searcher") !== null}
            onChange={(event) => change({ searcher: event.currentTarget.value, options: {} })}
          >
            {SEARCHERS.map(([name, title]) => (
              <option key={name} value={name}>
                {title}
              </option>
            ))}
            {isOther && <option value={search.searcher}>{search.searcher}</option>}
          </select>
          <ProblemText problem={problemOf("searcher")} />
        </div>
        <TextField
          label={search.budgetUnit === "epochs" ? "Epochs of a trial" : "Steps of a trial"}
          value={search.budget}
          onChange={(budget) => change({ budget })}
          placeholder="as the script has it"
          help="at most; the script takes them as a parameter"
          problem={problemOf("budget")}
        />
        <div class={fields["field"]}>
          <label for="new-budget-unit">Counted in</label>
          <select
            id="new-budget-unit"
            value={search.budgetUnit}
            onChange={(event) =>
              change({ budgetUnit: event.currentTarget.value as SearchForm["budgetUnit"] })
            }
          >
            <option>epochs</option>
            <option>steps</option>
          </select>
        </div>
        <TextField
          label="Seed"
          value={search.seed}
          onChange={(seed) => change({ seed })}
          placeholder="0"
          problem={problemOf("seed")}
        />
        {RUNG_SEARCHERS.has(search.searcher) && (
          <>
            <TextField
              label="Reduction factor"
              value={search.eta}
              onChange={(eta) => change({ eta })}
              placeholder="3"
              help="eta: one in so many trials continues"
              problem={problemOf("eta")}
            />
            <TextField
              label="Epochs at the first rung"
              value={search.minEpochs}
              onChange={(minEpochs) => change({ minEpochs })}
              placeholder="1"
              problem={problemOf("min_epochs")}
            />
          </>
        )}
      </div>
      {rungsText(search) !== "" && (
        <p class={fields["help"]}>
          {search.searcher} {rungsText(search)}
        </p>
      )}
    </>
  );
}

function RangeRows({
  rows,
  known,
  problem,
  onChange,
}: {
  rows: readonly RangeRow[];
  known: readonly string[];
  problem: Problem | null;
  onChange: (rows: RangeRow[]) => void;
}) {
  const change = (index: number, part: Partial<RangeRow>) =>
    onChange(rows.map((each, at) => (at === index ? { ...each, ...part } : each)));
  const add = (name: string) =>
    onChange([...rows.filter((row) => row.name !== "" || name === ""), { ...NEW_RANGE, name }]);
  const free = known.filter((name) => !rows.some((row) => row.name === name));
  const bad = problem?.path.replace(/^space\.?/, "") ?? "";
  const isBad = (name: string) => name !== "" && (bad === name || bad.startsWith(`${name}.`));
  return (
    <div class={fields["rows"]}>
      {rows.map((row, index) => {
        const own = rangeProblem(row);
        const found = own ? { path: "", message: own, hints: [] } : isBad(row.name) ? problem : null;
        return (
          <div key={index}>
            <div class={fields["row"]}>
              <input
                class={fields["mono"]}
                aria-label="name of the searched parameter"
                placeholder="lr"
                value={row.name}
                spellcheck={false}
                aria-invalid={found !== null}
                onInput={(event) => change(index, { name: event.currentTarget.value })}
              />
              <select
                aria-label={`range of ${row.name || "the parameter"}`}
                value={row.kind}
                onChange={(event) => change(index, { kind: event.currentTarget.value as RangeKind })}
              >
                {KINDS.map(([kind, title]) => (
                  <option key={kind} value={kind}>
                    {title}
                  </option>
                ))}
              </select>
              <Range row={row} isInvalid={found !== null} onChange={(part) => change(index, part)} />
              <RemoveButton
                label={`remove ${row.name || "the range"}`}
                onClick={() => onChange(rows.filter((_, at) => at !== index))}
              />
            </div>
            <ProblemText problem={found} />
          </div>
        );
      })}
      {problem !== null && !rows.some(({ name }) => isBad(name)) && <ProblemText problem={problem} />}
      <div class={fields["chips"]}>
        <Button onClick={() => add("")}>Add a range</Button>
        {free.length > 0 && "The script takes"}
        {free.slice(0, MAX_CHIPS).map((name) => (
          <button
            key={name}
            type="button"
            class={fields["chip"]}
            aria-label={`search ${name}`}
            onClick={() => add(name)}
          >
            {name}
          </button>
        ))}
      </div>
    </div>
  );
}

function Range({
  row,
  isInvalid,
  onChange,
}: {
  row: RangeRow;
  isInvalid: boolean;
  onChange: (part: Partial<RangeRow>) => void;
}) {
  const name = row.name || "the parameter";
  if (row.kind === "choice" || row.kind === "expression") {
    return (
      <input
        class={`${fields["mono"]} ${fields["wide"]}`}
        aria-label={`values of ${name}`}
        placeholder={row.kind === "choice" ? "16, 32, 64" : "loguniform(1e-5, 1e-1)"}
        value={row.text}
        spellcheck={false}
        aria-invalid={isInvalid}
        onInput={(event) => onChange({ text: event.currentTarget.value })}
      />
    );
  }
  return (
    <div class={`${styles["ends"]} ${fields["wide"]}`}>
      {(["low", "high"] as const).map((end) => (
        <input
          key={end}
          class={fields["mono"]}
          aria-label={`${end === "low" ? "lower" : "upper"} end of ${name}`}
          placeholder={end === "low" ? "from" : "to"}
          value={row[end]}
          spellcheck={false}
          aria-invalid={isInvalid}
          onInput={(event) => onChange({ [end]: event.currentTarget.value })}
        />
      ))}
      <label class={styles["switch"]}>
        <input
          type="checkbox"
          aria-label={`${name} on a log scale`}
          checked={row.isLog}
          onChange={(event) => onChange({ isLog: event.currentTarget.checked })}
        />
        log
      </label>
    </div>
  );
}
