import { describe, expect, it } from "vitest";
import {
  EMPTY_FORM,
  fieldOf,
  forkOf,
  formOf,
  likelyCommand,
  paramProblem,
  paramsOf,
  rebaseParams,
  valueOf,
  valuesOf,
} from "./run_values";

describe("the form of a file", () => {
  it("gives the same file again, with the keys that it does not show", () => {
    const values = {
      project: "p",
      datasets: ["mnist:3"],
      params: { lr: 0.1, deep: true, text: "1", none: null },
      tags: { team: "a" },
      ports: [8888],
      priority: 70,
      roles: [
        {
          name: "worker",
          command: "python train.py",
          resources: { gpus: "A100:2", extras: { fpga: 1 } },
          replicas: 4,
          topology: "spread:node",
        },
      ],
    };
    const found = formOf(values);
    expect(found?.form).toMatchObject({ nodes: "4", gpus: "A100:2", priority: "70" });
    expect(found && valuesOf(found.form, found.rest)).toEqual(values);
  });

  it("is none for several roles, and one role is enough", () => {
    expect(formOf({ roles: [{ command: "a" }, { command: "b" }] })).toBeNull();
    expect(valuesOf({ ...EMPTY_FORM, command: "a.py" }, {})).toEqual({ roles: [{ command: "a.py" }] });
  });
});

it("a fork takes all but the name of the run", () => {
  const values = { name: "baseline", project: "p", roles: [{ command: "a.py" }] };
  const found = forkOf(values);
  expect(found?.form).toMatchObject({ name: "", project: "p", command: "a.py" });
  expect(forkOf({ roles: [] })).toBeNull();
});

it("parameters keep the chosen type", () => {
  expect(valueOf({ name: "x", kind: "number", text: "1e-3" })).toBe(0.001);
  expect(valueOf({ name: "x", kind: "text", text: "1e-3" })).toBe("1e-3");
  expect(paramProblem({ name: "x", kind: "number", text: "many" })).toContain("not a number");
});

it("problems find their fields", () => {
  expect(fieldOf("roles.0.resources.cpu_milli")).toBe("cpus");
  expect(fieldOf("params.lr")).toBe("params");
  expect(fieldOf("time_limit_s")).toBe("time");
  expect(fieldOf("ports")).toBe("");
});

it("a folder suggests its script", () => {
  expect(likelyCommand(["a.py", "train.py", "x/y.py"])).toBe("python train.py");
  expect(likelyCommand(["a b.py"])).toBe("python 'a b.py'");
  expect(likelyCommand(["a.py", "b.py"])).toBe("");
});

it("a checkpoint brings the values that held at it, and leaves what the user has changed", () => {
  const start = paramsOf({ params: { lr: 0.1, width: 8 } });
  const current = paramsOf({ params: { lr: 0.1, width: 16, seed: 3 } });
  const saved = paramsOf({ params: { lr: 0.01, width: 9, decay: 0.5 } });
  expect(rebaseParams(current, start, saved)).toEqual(
    paramsOf({ params: { lr: 0.01, width: 16, seed: 3, decay: 0.5 } }),
  );
  expect(rebaseParams(rebaseParams(current, start, saved), saved, start)).toEqual(current);
});
