import { expect, test } from "vitest";
import type { Run } from "@/api/runs";
import { exitText, remainingSeconds, resourcesText, runSeconds } from "./run_text";

const NOW = Date.parse("2026-01-01T00:10:00Z");
const run = (fields: object) =>
  ({ phase: "running", started_at: "2026-01-01T00:00:00Z", ended_at: null, ...fields }) as Run;

test("resources are of each role and replica", () => {
  const roles = [
    {
      name: "main",
      replicas: 2,
      resources: { cpu_milli: 4000, memory_bytes: 8 << 20, gpus: 1, gpu_models: ["A100"] },
    },
    { name: "log", resources: {} },
  ];
  expect(resourcesText(run({ spec: { roles } }))).toBe("main: 2 × (4 CPUs, 8 MiB, 1 A100); log: 1 CPU");
});

test("what remains follows the speed of an attempt that began at the beginning", () => {
  const attempt = { started_at: "2026-01-01T00:08:20Z", resumed_from_step: null };
  const progress = { done: 10, total: 40, unit: "epoch" };
  expect(remainingSeconds(run({ attempt, progress }), NOW)).toBe(300);
  expect(remainingSeconds(run({ attempt: { ...attempt, resumed_from_step: 5 }, progress }), NOW)).toBeNull();
  expect(remainingSeconds(run({ attempt, progress: { ...progress, total: null } }), NOW)).toBeNull();
  expect(runSeconds(run({}), NOW)).toBe(600);
  expect(runSeconds(run({ started_at: null }), NOW)).toBeNull();
});

test("an exit code is written once", () => {
  expect(exitText({ code: 1, reason: "exit code 1: ValueError: no data" })).toBe(
    "exit code 1: ValueError: no data",
  );
  expect(exitText({ code: 137, reason: "out of memory" })).toBe("out of memory (exit code 137)");
  expect(exitText({ code: 2, reason: "" })).toBe("exit code 2");
});
