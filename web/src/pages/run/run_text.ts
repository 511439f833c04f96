/** What is written about a run. */
import { isFinal, type Run } from "@/api/runs";
import { formatBytes, formatCount } from "@/text/format";

/** Returns what the run asks for: `2 replicas, each 4 CPUs, 8 GiB, 1 A100`. */
export function resourcesText(run: Run): string {
  return run.spec.roles
    .map((role) => {
      const {
        cpu_milli = 1000,
        memory_bytes = 0,
        gpus = 0,
        gpu_milli = 0,
        gpu_models = [],
      } = role.resources ?? {};
      const replicas = role.replicas ?? 1;
      const parts = [formatCount(cpu_milli / 1000, "CPU")];
      if (memory_bytes > 0) {
        parts.push(formatBytes(memory_bytes));
      }
      const count = gpus > 0 ? gpus : gpu_milli / 1000;
      if (count > 0) {
        parts.push(gpu_models.length > 0 ? `${count} ${gpu_models.join("/")}` : formatCount(count, "GPU"));
      }
      const each = parts.join(", ");
      const name = run.spec.roles.length > 1 ? `${role.name}: ` : "";
      return name + (replicas > 1 ? `${replicas} × (${each})` : each);
    })
    .join("; ");
}

/** Returns the seconds that the run has run so far; null before it started. */
export function runSeconds(run: Run, now: number): number | null {
  if (run.started_at === null) {
    return null;
  }
  const end = run.ended_at === null ? now : Date.parse(run.ended_at);
  return Math.max(0, (end - Date.parse(run.started_at)) / 1000);
}

/** Returns the seconds that remain at the speed of the current attempt so far; null where that is unknown. */
export function remainingSeconds(run: Run, now: number): number | null {
  const { progress, attempt } = run;
  const startedAt = attempt?.started_at;
  if (isFinal(run) || run.phase !== "running" || !progress?.total || progress.done <= 0 || !startedAt) {
    return null;
  }
  if ((attempt.resumed_from_step ?? null) !== null) {
    return null; // what earlier attempts did is in `done`, but not in the time
  }
  const seconds = (now - Date.parse(startedAt)) / 1000;
  return (seconds / progress.done) * Math.max(0, progress.total - progress.done);
}

/** Returns a value of a parameter as it is written in Python's words of `hop info`. */
export function paramText(value: string | number | boolean | null): string {
  return value === null ? "none" : String(value);
}

/** Returns how a run failed, with its exit code once. */
export function exitText({ code, reason }: { code: number; reason: string }): string {
  const text = `exit code ${code}`;
  return reason === "" || reason.startsWith(text) ? reason || text : `${reason} (${text})`;
}
