import type { Schemas } from "@/api/client";
import styles from "./phase.module.css";

type Phase = Schemas["RunPhase"];

const KINDS: Record<Phase, string> = {
  queued: "wait",
  starting: "active",
  running: "active",
  paused: "wait",
  stopping: "wait",
  succeeded: "good",
  failed: "bad",
  cancelled: "idle",
};

/** The phase of a run, as a word with a colour. */
export function PhaseBadge({ phase }: { phase: Phase }) {
  return <span class={`${styles["badge"]} ${styles[KINDS[phase]]}`}>{phase}</span>;
}
