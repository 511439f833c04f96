/** What changes on the server, as it happens: one stream of events for all parts of the page. */
import { signal } from "@preact/signals";
import type { Schemas } from "./client";

type RunOut = Schemas["RunOut"];

/** The `data` of an event, as docs/reference/api.md describes it. `run`: for a run or study that still exists. */
export interface ServerEvent {
  kind: "open" | "reset" | "run" | "study" | "node" | "queues" | "reservation";
  change: string;
  subject: string;
  detail: string;
  at?: string;
  run?: Pick<
    RunOut,
    | "id"
    | "name"
    | "phase"
    | "note"
    | "archived"
    | "stop_requested"
    | "started_at"
    | "ended_at"
    | "params"
    | "summary"
  > & { label: string; tags: Record<string, string>; latest: NonNullable<RunOut["latest"]> };
}

type Listener = (event: ServerEvent) => void;

const RETRY_MS = 2000;

/** Whether the stream is open. Without it, parts of the page read again at intervals. */
export const isStreaming = signal(false);

const listeners = new Set<Listener>();
let source: EventSource | null = null;
let timer = 0;
let last = "";

function connect(): void {
  window.clearTimeout(timer);
  source = new EventSource(`/api/v1/events${last === "" ? "" : `?after=${encodeURIComponent(last)}`}`);
  source.onopen = () => (isStreaming.value = true);
  source.onmessage = (message: MessageEvent<string>) => {
    last = message.lastEventId;
    const event = JSON.parse(message.data) as ServerEvent;
    [...listeners].forEach((listener) => listener(event));
  };
  source.onerror = () => {
    isStreaming.value = false;
    // the browser reconnects by itself after a broken connection, but not after an error's response
    if (source?.readyState === EventSource.CLOSED) {
      timer = window.setTimeout(connect, RETRY_MS);
    }
  };
}

function disconnect(): void {
  window.clearTimeout(timer);
  source?.close();
  source = null;
  isStreaming.value = false;
}

/** Calls the listener for each event, until the returned function is called. After a `reset`, read all again. */
export function followEvents(listener: Listener): () => void {
  listeners.add(listener);
  if (source === null) {
    connect();
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      disconnect();
    }
  };
}
