/** The form of a reservation, and the request that it makes. */
import type { Schemas } from "@/api/client";

export interface ReserveForm {
  name: string;
  start: string; // 2026-11-28T09:00 in this machine's zone, as `end` and `until`
  end: string;
  users: string;
  queue: string;
  what: "nodes" | "pieces";
  nodes: readonly string[];
  count: string;
  gpus: string;
  model: string;
  cpus: string;
  memoryGib: string;
  every: string; // days
  until: string;
}

export const EMPTY_FORM: ReserveForm = {
  name: "",
  start: "",
  end: "",
  users: "",
  queue: "",
  what: "nodes",
  nodes: [],
  count: "1",
  gpus: "1",
  model: "",
  cpus: "1",
  memoryGib: "0",
  every: "0",
  until: "",
};

const DAY_S = 86400;

/** Returns the body of the request. Throws an Error that says what is missing. */
export function toReservation(form: ReserveForm): Schemas["ReservationIn"] {
  const users = form.users.split(/[\s,]+/).filter(Boolean);
  if (form.name.trim() === "") {
    throw new Error("Give the reservation a name.");
  }
  if (users.length === 0 && form.queue === "") {
    throw new Error("Name users, or choose a queue.");
  }
  if (form.what === "nodes" && form.nodes.length === 0) {
    throw new Error("Choose a node.");
  }
  const every = Number(form.every) * DAY_S;
  const body = {
    name: form.name.trim(),
    start_at: toTime(form.start, "start"),
    end_at: toTime(form.end, "end"),
    users,
    queue: form.queue === "" ? null : form.queue,
    every_s: every,
    until: every > 0 && form.until !== "" ? toTime(form.until, "until") : null,
    zone: every > 0 ? Intl.DateTimeFormat().resolvedOptions().timeZone : "",
  };
  if (form.what === "nodes") {
    return { ...body, nodes: [...form.nodes], count: 1, resources: null };
  }
  return {
    ...body,
    nodes: [],
    count: Number(form.count),
    resources: {
      cpu_milli: Math.round(Number(form.cpus) * 1000),
      memory_bytes: Math.round(Number(form.memoryGib) * 2 ** 30),
      gpus: Number(form.gpus),
      gpu_models: form.model.trim() === "" ? [] : [form.model.trim()],
    },
  };
}

function toTime(text: string, what: string): string {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) {
    throw new Error(`Choose a time: ${what}.`);
  }
  return time.toISOString();
}
