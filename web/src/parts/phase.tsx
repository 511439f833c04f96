import type { Schemas } from "@/api/client";
import styles from "./phase.module.css";

type Phase = Schemas["RunPhase"];

export type Tone = "good" | "active" | "wait" | "bad" | "idle";

const TONES: Record<Phase, Tone> = {
  queued: "wait",
  starting: "active",
  running: "active",
  paused: "wait",
  stopping: "wait",
  succeeded: "good",
  failed: "bad",
  cancelled: "idle",
};

/** A word with the colour of its tone. */
export function Badge({ tone, children }: { tone: Tone; children: string }) {
  return <span class={`${styles["badge"]} ${styles[tone]}`}>{children}</span>;
}

/** The phase of a run, as a word with a colour. */
export function PhaseBadge({ phase }: { phase: Phase }) {
  return <Badge tone={TONES[phase]}>{phase}</Badge>;
}
