/** The values of a `hop.yaml` that the form shows and changes. Keys that it does not show stay as they are. */
export type Value = string | number | boolean | null;
export type Values = Record<string, unknown>;
export type Param = { name: string; kind: ParamKind; text: string };
export type ParamKind = "number" | "text" | "yes/no" | "nothing";

/** Where the packages of the run come from. */
export type Packages = "server" | "requirements" | "image";

export interface Form {
  command: string;
  datasets: string[];
  params: Param[];
  cpus: string;
  memory: string;
  gpus: string;
  nodes: string;
  packages: Packages;
  requirements: string;
  image: string;
  queue: string;
  priority: string;
  time: string;
  name: string;
  project: string;
  tags: { key: string; value: string }[];
}

export const EMPTY_FORM: Form = {
  command: "",
  datasets: [],
  params: [],
  cpus: "",
  memory: "",
  gpus: "",
  nodes: "1",
  packages: "server",
  requirements: "",
  image: "",
  queue: "",
  priority: "",
  time: "",
  name: "",
  project: "",
  tags: [],
};

const SPREAD = "spread:node";

/** Returns the form of a file; `rest` has what the form does not show. A file with several roles has none. */
export function formOf(values: Values): { form: Form; rest: Values } | null {
  const { roles, datasets, params, requirements, queue, priority, time, name, project, tags, ...rest } =
    values as Values & { roles?: unknown };
  const list = Array.isArray(roles) ? (roles as Values[]) : [];
  const role = list[0];
  if (list.length !== 1 || role === undefined || isMapping(role["replicas"])) {
    return null;
  }
  const { command, resources, replicas, topology, image, ...restOfRole } = role;
  const { cpus, memory, gpus, ...restOfResources } = isMapping(resources) ? resources : {};
  const isSpread = topology === SPREAD;
  const form: Form = {
    command: commandText(command),
    datasets: Array.isArray(datasets) ? datasets.map(String) : [],
    params: paramsOf({ params }),
    cpus: textOf(cpus),
    memory: textOf(memory),
    gpus: textOf(gpus),
    nodes: isSpread ? textOf(replicas) : "1",
    packages: textOf(image) !== "" ? "image" : textOf(requirements) !== "" ? "requirements" : "server",
    requirements: textOf(requirements),
    image: textOf(image),
    queue: textOf(queue),
    priority: textOf(priority),
    time: textOf(time),
    name: textOf(name),
    project: textOf(project),
    tags: Object.entries(isMapping(tags) ? tags : {}).map(([key, value]) => ({ key, value: textOf(value) })),
  };
  const others = isSpread
    ? restOfRole
    : {
        ...restOfRole,
        ...(replicas !== undefined && replicas !== 1 && { replicas }),
        ...(topology !== undefined && { topology }),
      };
  return { form, rest: { ...rest, roles: [{ ...others, resources: restOfResources }] } };
}

/** Returns the parameters of a file. */
export function paramsOf(values: Values): Param[] {
  const params = values["params"];
  return Object.entries(isMapping(params) ? params : {}).map(([key, value]) => paramOf(key, value));
}

/** Returns `current` with the changes from one set of parameters to another, except where the user has changed
 * a parameter. */
export function rebaseParams(
  current: readonly Param[],
  before: readonly Param[],
  after: readonly Param[],
): Param[] {
  const isIn = (params: readonly Param[], { name, kind, text }: Param) =>
    params.some((each) => each.name === name && each.kind === kind && each.text === text);
  const named = (params: readonly Param[], name: string) => params.find((each) => each.name === name);
  const kept = current.flatMap((param) => (isIn(before, param) ? (named(after, param.name) ?? []) : param));
  const added = after.filter(({ name }) => !named(before, name) && !named(current, name));
  return [...kept, ...added];
}

/** Returns the values of the file that the form describes. */
export function valuesOf(form: Form, rest: Values): Values {
  const role = Array.isArray(rest["roles"]) ? ((rest["roles"] as Values[])[0] ?? {}) : {};
  const resources = {
    ...(isMapping(role["resources"]) ? role["resources"] : {}),
    ...given("cpus", form.cpus),
    ...given("memory", form.memory),
    ...given("gpus", form.gpus),
  };
  const isSpread = form.nodes.trim() !== "" && form.nodes.trim() !== "1";
  const params = form.params.filter(({ name }) => name.trim() !== "");
  const tags = form.tags.filter(({ key }) => key.trim() !== "");
  const datasets = form.datasets.map((each) => each.trim()).filter((each) => each !== "");
  return {
    ...rest,
    ...given("name", form.name),
    ...given("project", form.project),
    ...(datasets.length > 0 && { datasets }),
    ...(params.length > 0 && {
      params: Object.fromEntries(params.map((param) => [param.name.trim(), valueOf(param)])),
    }),
    ...(tags.length > 0 && { tags: Object.fromEntries(tags.map(({ key, value }) => [key.trim(), value])) }),
    ...(form.packages === "requirements" && given("requirements", form.requirements)),
    ...given("queue", form.queue),
    ...(form.priority.trim() !== "" && { priority: numberOr(form.priority) }),
    ...given("time", form.time),
    roles: [
      {
        ...role,
        command: form.command,
        ...(Object.keys(resources).length > 0 && { resources }),
        ...(isSpread && { replicas: numberOr(form.nodes), topology: SPREAD }),
        ...(form.packages === "image" && given("image", form.image)),
      },
    ],
  };
}

function given(key: string, text: string): Values {
  return text.trim() === "" ? {} : { [key]: text.trim() };
}

function numberOr(text: string): number | string {
  return /^\d+$/.test(text.trim()) ? Number(text) : text.trim();
}

function isMapping(value: unknown): value is Values {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function textOf(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./{}-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Returns a command as one types it; a script is enough for `python SCRIPT`. */
function commandText(command: unknown): string {
  const words = Array.isArray(command) ? command.map(String) : null;
  return words === null ? textOf(command) : words.map(quote).join(" ");
}

export function paramOf(name: string, value: unknown): Param {
  if (value === null) {
    return { name, kind: "nothing", text: "" };
  }
  if (typeof value === "boolean") {
    return { name, kind: "yes/no", text: value ? "yes" : "no" };
  }
  return { name, kind: typeof value === "number" ? "number" : "text", text: textOf(value) };
}

/** Returns the value of a parameter. A number that is none stays a text, for the server to refuse. */
export function valueOf({ kind, text }: Param): Value {
  switch (kind) {
    case "nothing":
      return null;
    case "yes/no":
      return text === "yes";
    case "text":
      return text;
    case "number": {
      const number = Number(text);
      return text.trim() !== "" && Number.isFinite(number) ? number : text;
    }
  }
}

/** Returns what is wrong with a parameter before the server looks at it, "" for nothing. */
export function paramProblem(param: Param): string {
  if (param.name.trim() === "") {
    return param.text === "" ? "" : "give the parameter a name";
  }
  return param.kind === "number" && typeof valueOf(param) !== "number"
    ? "not a number: write 0.1 or 1e-3, or choose text"
    : "";
}

/** Returns the form of a fork. The run keeps its name: the fork has another one, or none. */
export function forkOf(values: Values): { form: Form; rest: Values } | null {
  const found = formOf(values);
  return found && { ...found, form: { ...found.form, name: "" } };
}

/** Returns the field of the form for a key of the file or of the spec, "" for none. */
export function fieldOf(path: string): string {
  const known: [RegExp, string][] = [
    [/^roles\.\d+\.(command|arguments)/, "command"],
    [/^roles\.\d+\.resources\.(cpus|cpu_milli)/, "cpus"],
    [/^roles\.\d+\.resources\.(memory)/, "memory"],
    [/^roles\.\d+\.resources\.gpu/, "gpus"],
    [/^roles\.\d+\.(replicas|topology)/, "nodes"],
    [/^roles\.\d+\.image|^container|^image/, "image"],
    [/^requirements|^environment|^python/, "requirements"],
    [/^datasets/, "datasets"],
    [/^params\.(.+)$/, "params"],
    [/^params/, "params"],
    [/^tags/, "tags"],
    [/^queue/, "queue"],
    [/^priority/, "priority"],
    [/^time/, "time"],
    [/^(name|label)$/, "name"],
    [/^project/, "project"],
    [/^space/, "space"],
    [/^metric$/, "metric"],
    [/^(goal|mode)$/, "goal"],
    [/^searcher\.(eta|min_epochs)$/, "$1"],
    [/^searcher/, "searcher"],
    [/^(trials|concurrent|seed)$/, "$1"],
    [/^(max_)?(epochs|steps)$|^budget$/, "budget"],
  ];
  const found = known.find(([pattern]) => pattern.test(path));
  return found === undefined ? "" : found[1].replace("$1", found[0].exec(path)?.[1] ?? "");
}

const ENTRIES = ["main.py", "train.py", "run.py"];

/** Returns the command that a folder most likely wants. */
export function likelyCommand(paths: readonly string[]): string {
  const scripts = paths.filter((path) => /\.(py|ipynb)$/.test(path));
  const top = scripts.filter((path) => !path.includes("/"));
  const found = ENTRIES.find((name) => top.includes(name)) ?? (top.length === 1 ? top[0] : undefined);
  const script = found ?? (scripts.length === 1 ? scripts[0] : undefined);
  return script === undefined ? "" : `python ${quote(script)}`;
}
