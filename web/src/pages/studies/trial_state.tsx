import type { Schemas } from "@/api/client";
import { Badge, type Tone } from "@/parts/phase";
import type { Trial } from "./study_data";

const TONES: Record<Schemas["TrialPhase"], Tone> = {
  training: "active",
  paused: "wait",
  completed: "good",
  failed: "bad",
  stopped: "idle",
};

/** The state of a trial, as a word with a colour. */
export function TrialState({ state }: { state: Trial["state"] }) {
  return <Badge tone={TONES[state]}>{state}</Badge>;
}
