import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { Button } from "@/parts/button";
import { ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { AnswerPanel } from "./answer_panel";
import { Checkpoints } from "./checkpoints";
import { CodePart, readParams, readSource } from "./code_part";
import {
  EMPTY_DRAFT,
  forgetDraft,
  loadDraft,
  parseFile,
  saveDraft,
  type Code,
  type Draft,
  type Source,
} from "./draft";
import { type Problem, ProblemText, RemoveButton, TextField } from "@/parts/form_field";
import { ParamRows } from "./param_rows";
import { newRunId } from "./run_id";
import { fieldOf, forkOf, likelyCommand, rebaseParams, type Form, type Packages } from "./run_values";
import { SearchPart } from "./search_part";
import { NEW_SEARCH, searchedNames } from "./search_values";
import { useAnswer } from "./use_answer";
import fields from "@/parts/form.module.css";
import styles from "./new.module.css";

const REQUIREMENTS = /^(requirements.*\.txt|pyproject\.toml|pylock.*\.toml|environment\.ya?ml)$/;

/** A new run or study from the browser: its code, what it does with it, and the queue's answer before it is
 *  submitted. `?from=RUN` begins with a run, `?dataset=NAME` adds a dataset, `?search=1` makes a study. */
export function NewPage() {
  const [, navigate] = useLocation();
  const [search] = useSearchParams();
  const from = search.get("from");
  const added = search.get("dataset");
  const wantsSearch = search.has("search");
  const [draft, setDraft] = useState<Draft>(() => {
    const stored = withDataset(loadDraft(), added);
    return wantsSearch ? { ...stored, search: stored.search ?? NEW_SEARCH } : stored;
  });
  const [isReading, setReading] = useState(from !== null);
  const [isSending, setSending] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [leftOut, setLeftOut] = useState<string[]>([]);
  const runId = useRef<string | null>(null);
  const answer = useAnswer(draft);
  const known = useRef<string[]>([]); // stays while a problem is mended
  known.current = answer.spec === null ? known.current : knownParams(answer.spec);

  const takeRun = async (reference: string) => {
    const found = await readSource(reference);
    const parsed = forkOf(found.values);
    setLeftOut(found.leftOut);
    setDraft((old) => ({
      ...EMPTY_DRAFT,
      search: old.search,
      code: found.code,
      source: found.source,
      ...(parsed === null ? { text: found.file } : { form: parsed.form, rest: parsed.rest }),
    }));
  };
  useEffect(() => {
    if (from !== null) {
      // a draft of this run, and changed since, is kept through a reload
      (loadDraft().source?.id === from ? Promise.resolve() : takeRun(from))
        .catch(setError)
        .finally(() => setReading(false));
    }
  }, [from]);
  useLayoutEffect(() => saveDraft(draft), [draft]); // before a reload can come

  const takeCheckpoint = async (checkpoint: Source["checkpoint"]) => {
    const id = draft.source?.id ?? "";
    setDraft((old) => ({ ...old, source: old.source && { ...old.source, checkpoint } }));
    try {
      const params = await readParams(id, checkpoint);
      setDraft((old) =>
        old.source?.id !== id || old.source.checkpoint?.manifest !== checkpoint?.manifest
          ? old // another was chosen meanwhile
          : {
              ...old,
              source: { ...old.source, params },
              form: { ...old.form, params: rebaseParams(old.form.params, old.source.params, params) },
            },
      );
    } catch (failure) {
      setError(failure);
    }
  };

  const { form } = draft;
  const change = (part: Partial<Form>) => setDraft((old) => ({ ...old, form: { ...old.form, ...part } }));
  const takeCode = (code: Code | null) =>
    setDraft((old) => {
      if (code === null) {
        return { ...old, code, source: null };
      }
      const requirements = code.paths.find((path) => path === "requirements.txt") ?? "";
      const isNew = old.form.command.trim() === "";
      return {
        ...old,
        code,
        source: null,
        form: {
          ...old.form,
          ...(isNew && { command: likelyCommand(code.paths) }),
          ...(old.form.project === "" && code.name !== "" && { project: projectName(code.name) }),
          ...(isNew && requirements !== "" && { packages: "requirements" as const, requirements }),
        },
      };
    });
  const start = async () => {
    if (answer.spec === null) {
      return;
    }
    setSending(true);
    setError(null);
    runId.current ??= newRunId();
    try {
      const run = await data(
        api.POST("/api/v1/runs", {
          params: { query: { plan: 1 } },
          body: { spec: answer.spec, id: runId.current },
        }),
      );
      forgetDraft();
      navigate(answer.composed?.study ? `/studies/${run.name}` : `/runs/${run.name}?tab=curves`);
    } catch (failure) {
      runId.current = null;
      setError(failure);
      setSending(false);
    }
  };
  const problemOf = (field: string): Problem | null =>
    answer.problem !== null && fieldOf(answer.problem.path) === field ? answer.problem : null;
  const scripts = (draft.code?.paths ?? []).filter((path) => /\.(py|ipynb)$/.test(path)).slice(0, 200);

  return (
    <div class={page["page"]}>
      <div class={page["head"]}>
        <h1>{answer.composed?.study || draft.search ? "New study" : "New run"}</h1>
        <Button
          onClick={() => {
            setDraft(EMPTY_DRAFT);
            setError(null);
            setLeftOut([]);
            if (from !== null || added !== null || wantsSearch) {
              navigate("/new");
            }
          }}
        >
          Start over
        </Button>
      </div>
      {isReading ? (
        <Loading />
      ) : (
        <div class={styles["layout"]}>
          <div class={styles["form"]}>
            <CodePart draft={draft} isLost={answer.isCodeLost} onCode={takeCode} onSource={takeRun} />
            {leftOut.length > 0 && (
              <p class={fields["help"]}>
                Not taken from the run of another user: {leftOut.join(", ")}. Set them in the file below.
              </p>
            )}
            {draft.source && (
              <p class={fields["help"]}>
                {draft.search === null ? "A fork of " : "A search around "}
                <Link href={`/runs/${draft.source.name}`}>{draft.source.name}</Link>, with its packages and
                the versions of its data.
              </p>
            )}
            {draft.source && draft.search === null && (
              <Checkpoints draft={draft} onChange={(checkpoint) => void takeCheckpoint(checkpoint)} />
            )}
            {draft.text === null ? (
              <>
                <section class={fields["section"]} aria-label="what it runs">
                  <h2>What it runs</h2>
                  <TextField
                    label="Command"
                    value={form.command}
                    onChange={(command) => change({ command })}
                    placeholder="python train.py"
                    suggestions={scripts.map((path) => `python ${path}`)}
                    problem={problemOf("command")}
                    help="A script of the code, or a program. Its options may follow, or stand below."
                    isMono
                  />
                  <div class={fields["field"]}>
                    <span class={fields["legend"]}>Parameters</span>
                    <ParamRows
                      params={form.params}
                      known={known.current}
                      searched={searchedNames(draft.search)}
                      problem={problemOf("params")}
                      onChange={(params) => change({ params })}
                    />
                  </div>
                  <Datasets form={form} change={change} problem={problemOf("datasets")} />
                </section>
                <SearchPart
                  search={draft.search}
                  known={known.current}
                  problemOf={problemOf}
                  onChange={(next) => setDraft((old) => ({ ...old, search: next }))}
                />
                <Resources
                  form={form}
                  change={change}
                  problemOf={problemOf}
                  paths={draft.code?.paths ?? []}
                />
                <Scheduling form={form} change={change} problemOf={problemOf} />
              </>
            ) : (
              <section class={fields["section"]} aria-label="file">
                <h2>hop.yaml</h2>
                <div class={fields["field"]}>
                  <label for="new-file">The whole run as a file</label>
                  <textarea
                    id="new-file"
                    spellcheck={false}
                    value={draft.text}
                    aria-invalid={answer.problem !== null}
                    onInput={(event) => {
                      const text = event.currentTarget.value;
                      setDraft((old) => ({ ...old, text }));
                    }}
                  />
                  {answer.problem !== null && fieldOf(answer.problem.path) !== "" && (
                    <ProblemText
                      problem={{
                        ...answer.problem,
                        message: `${answer.problem.path}: ${answer.problem.message}`,
                      }}
                    />
                  )}
                </div>
              </section>
            )}
            <FileSwitch draft={draft} composed={answer.composed} setDraft={setDraft} />
          </div>
          <div class={styles["side"]}>
            <AnswerPanel
              answer={answer}
              isBusy={answer.isBusy}
              isSending={isSending}
              isStudy={Boolean(answer.composed?.study) || draft.search !== null}
              isFormEmpty={draft.text === null && form.command.trim() === ""}
              onStart={() => void start()}
            />
            {error !== null && <ErrorNotice error={error} />}
          </div>
        </div>
      )}
    </div>
  );
}

/** Changes between the form and the text of the file. */
function FileSwitch({
  draft,
  composed,
  setDraft,
}: {
  draft: Draft;
  composed: Schemas["ComposeOut"] | null;
  setDraft: (change: (old: Draft) => Draft) => void;
}) {
  if (draft.text === null) {
    const file = composed?.file ?? "";
    return (
      <div class={fields["buttons"]}>
        <Button disabled={file === ""} onClick={() => setDraft((old) => ({ ...old, text: file }))}>
          Edit as a file
        </Button>
        <span class={fields["help"]}>
          hop.yaml has more settings: several roles, ports, retention, network
        </span>
      </div>
    );
  }
  const parsed = composed?.values ? parseFile(composed.values) : null;
  return (
    <div class={fields["buttons"]}>
      <Button
        disabled={parsed === null}
        onClick={() => setDraft((old) => (parsed === null ? old : { ...old, ...parsed, text: null }))}
      >
        Back to the form
      </Button>
      {composed?.values && parsed === null && (
        <span class={fields["help"]}>The form cannot show all of this file.</span>
      )}
    </div>
  );
}

interface PartProps {
  form: Form;
  change: (part: Partial<Form>) => void;
}

function Datasets({ form, change, problem }: PartProps & { problem: Problem | null }) {
  const found = usePolled(
    "new datasets",
    () => data(api.GET("/api/v1/datasets")),
    () => null,
  ).data;
  const names = found?.datasets.map(({ name }) => name) ?? [];
  return (
    <div class={fields["field"]}>
      <span class={fields["legend"]}>Datasets</span>
      <div class={fields["rows"]}>
        {form.datasets.map((dataset, index) => (
          <div key={index} class={`${fields["row"]} ${fields["single"]}`}>
            <input
              aria-label="dataset"
              class={fields["mono"]}
              list="new-datasets"
              placeholder="mnist, mnist:3, or mnist=data for the folder data"
              value={dataset}
              spellcheck={false}
              aria-invalid={problem !== null}
              onInput={(event) => {
                const text = event.currentTarget.value;
                change({ datasets: form.datasets.map((each, at) => (at === index ? text : each)) });
              }}
            />
            <RemoveButton
              label={`remove ${dataset || "the dataset"}`}
              onClick={() => change({ datasets: form.datasets.filter((_, at) => at !== index) })}
            />
          </div>
        ))}
        <datalist id="new-datasets">
          {names.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <ProblemText problem={problem} />
        <div class={fields["chips"]}>
          <Button onClick={() => change({ datasets: [...form.datasets, ""] })}>Add a dataset</Button>
          <Link href="/datasets?push=">Upload a dataset</Link>
        </div>
      </div>
    </div>
  );
}

type ProblemOf = (field: string) => Problem | null;

function Resources({
  form,
  change,
  problemOf,
  paths,
}: PartProps & { problemOf: ProblemOf; paths: readonly string[] }) {
  return (
    <section class={fields["section"]} aria-label="resources">
      <h2>Resources</h2>
      <div class={fields["grid"]}>
        <TextField
          label="GPUs"
          value={form.gpus}
          onChange={(gpus) => change({ gpus })}
          placeholder="none"
          help="2, a part 0.5, or A100:2"
          problem={problemOf("gpus")}
        />
        <TextField
          label="CPUs"
          value={form.cpus}
          onChange={(cpus) => change({ cpus })}
          placeholder="1, and idle ones"
          problem={problemOf("cpus")}
        />
        <TextField
          label="Memory"
          value={form.memory}
          onChange={(memory) => change({ memory })}
          placeholder="no limit"
          help="8G"
          problem={problemOf("memory")}
        />
        <TextField
          label="Nodes"
          value={form.nodes}
          onChange={(nodes) => change({ nodes })}
          help="one replica on each"
          problem={problemOf("nodes")}
        />
      </div>
      <div class={fields["grid"]}>
        <div class={fields["field"]}>
          <label for="new-packages">Python packages</label>
          <select
            id="new-packages"
            value={form.packages}
            onChange={(event) => change({ packages: event.currentTarget.value as Packages })}
          >
            <option value="server">automatic</option>
            <option value="requirements">a file of the code</option>
            <option value="image">a container image</option>
          </select>
          {form.packages === "server" && (
            <span class={fields["help"]}>inline metadata of the script, else the server's Python</span>
          )}
        </div>
        {form.packages === "requirements" && (
          <TextField
            label="File"
            value={form.requirements}
            onChange={(requirements) => change({ requirements })}
            placeholder="requirements.txt"
            suggestions={paths.filter((path) => REQUIREMENTS.test(path.slice(path.lastIndexOf("/") + 1)))}
            problem={problemOf("requirements")}
          />
        )}
        {form.packages === "image" && (
          <TextField
            label="Image"
            value={form.image}
            onChange={(image) => change({ image })}
            placeholder="python:3.12-slim"
            problem={problemOf("image")}
          />
        )}
      </div>
      {form.packages === "server" && <ProblemText problem={problemOf("requirements")} />}
    </section>
  );
}

function Scheduling({ form, change, problemOf }: PartProps & { problemOf: ProblemOf }) {
  const found = usePolled(
    "new queues",
    () => data(api.GET("/api/v1/queues")),
    () => null,
  ).data;
  const queues = found?.queues.filter(({ leaf }) => leaf).map(({ name }) => name) ?? [];
  return (
    <section class={fields["section"]} aria-label="queue and names">
      <h2>Queue and names</h2>
      <div class={fields["grid"]}>
        <TextField
          label="Queue"
          value={form.queue}
          onChange={(queue) => change({ queue })}
          placeholder="the default"
          suggestions={queues}
          problem={problemOf("queue")}
        />
        <TextField
          label="Priority"
          value={form.priority}
          onChange={(priority) => change({ priority })}
          placeholder="of the queue"
          help="0 to 100; larger starts first"
          problem={problemOf("priority")}
        />
        <TextField
          label="Time limit"
          value={form.time}
          onChange={(time) => change({ time })}
          placeholder="none"
          help="2h: a limit often starts sooner"
          problem={problemOf("time")}
        />
        <TextField
          label="Name"
          value={form.name}
          onChange={(name) => change({ name })}
          placeholder="none"
          help="the newest run with a name is found by it"
          problem={problemOf("name")}
        />
        <TextField
          label="Project"
          value={form.project}
          onChange={(project) => change({ project })}
          placeholder="of the folder"
          problem={problemOf("project")}
        />
      </div>
      <div class={fields["field"]}>
        <span class={fields["legend"]}>Tags</span>
        <div class={fields["rows"]}>
          {form.tags.map(({ key, value }, index) => {
            const put = (part: { key?: string; value?: string }) =>
              change({ tags: form.tags.map((each, at) => (at === index ? { ...each, ...part } : each)) });
            return (
              <div key={index} class={`${fields["row"]} ${fields["pair"]}`}>
                <input
                  aria-label="name of the tag"
                  placeholder="team"
                  value={key}
                  onInput={(event) => put({ key: event.currentTarget.value })}
                />
                <input
                  aria-label={`value of ${key || "the tag"}`}
                  placeholder="vision"
                  value={value}
                  onInput={(event) => put({ value: event.currentTarget.value })}
                />
                <RemoveButton
                  label={`remove ${key || "the tag"}`}
                  onClick={() => change({ tags: form.tags.filter((_, at) => at !== index) })}
                />
              </div>
            );
          })}
          <ProblemText problem={problemOf("tags")} />
          <div class={fields["chips"]}>
            <Button onClick={() => change({ tags: [...form.tags, { key: "", value: "" }] })}>
              Add a tag
            </Button>
          </div>
        </div>
      </div>
    </section>
  );
}

/** Returns the draft with a dataset more, unless it has that dataset. */
function withDataset(draft: Draft, name: string | null): Draft {
  const { datasets } = draft.form;
  return name === null || datasets.includes(name)
    ? draft
    : { ...draft, form: { ...draft.form, datasets: [...datasets, name] } };
}

function knownParams(spec: Schemas["SpecIn"]): string[] {
  const trial = spec.study?.["trial"] as Schemas["SpecIn"] | undefined;
  return Object.keys((trial ?? spec).param_format?.options ?? {});
}

function projectName(name: string): string {
  const last =
    name
      .replace(/\.git$/, "")
      .split("/")
      .at(-1) ?? "";
  return last
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, "-")
    .replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "")
    .slice(0, 60);
}
