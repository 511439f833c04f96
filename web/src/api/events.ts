/** What changes on the server, as it happens: one stream of events for all tabs of a browser.
 *
 *  Browsers allow six connections to a host over HTTP/1.1. So a shared worker holds the stream and passes the events
 *  on. Where a browser has no shared workers, each tab holds a stream while it is visible. */
import { signal } from "@preact/signals";
import { noteAnswer } from "./answers";
import type { Schemas } from "./client";
import { EventRelay, RELAY_NAME, type FromRelay, type ToRelay } from "./event_relay";
import { isSignedOut } from "./session";

type RunOut = Schemas["RunOut"];

/** The `data` of an event, as docs/reference/api.md describes it. `run`: for a run or study that still exists. */
export interface ServerEvent {
  kind: "open" | "reset" | "run" | "study" | "node" | "queues" | "reservation" | "report";
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

const PING_MS = 15_000;

/** Whether the stream is open. Without it, parts of the page read again at intervals. */
export const isStreaming = signal(false);

/** Whether changes may be missing before this event, so that all has to be read again. */
export function isGap(event: ServerEvent): boolean {
  return event.kind === "open" || event.kind === "reset";
}

interface Connection {
  send: (message: ToRelay) => void;
  close: () => void;
}

const listeners = new Set<Listener>();
let connection: Connection | null = null;

function receive(message: FromRelay): void {
  if ("data" in message || message.isOpen) {
    noteAnswer();
  }
  if ("data" in message) {
    const event = JSON.parse(message.data) as ServerEvent;
    [...listeners].forEach((listener) => listener(event));
  } else {
    isStreaming.value = message.isOpen;
  }
}

/** The stream of the shared worker. One that does not answer is replaced; one that cannot start, by `openOwn`. */
function openShared(): Connection {
  let port: MessagePort | null = null;
  let isAnswered = true;
  let own: Connection | null = null;
  let isClosed = false;
  const fail = () => {
    port = null;
    if (!isClosed) {
      own ??= openOwn();
    }
  };
  const start = () => {
    let worker: SharedWorker;
    try {
      worker = new SharedWorker(new URL("./event_worker.ts", import.meta.url), {
        type: "module",
        name: RELAY_NAME,
      });
    } catch {
      fail(); // refused by the browser's settings
      return;
    }
    worker.onerror = fail;
    port?.close();
    port = worker.port;
    port.onmessage = ({ data }: MessageEvent<FromRelay>) => {
      isAnswered = true;
      receive(data);
    };
    port.postMessage("join" satisfies ToRelay);
  };
  const ping = () => {
    if (own === null && !isAnswered) {
      isStreaming.value = false;
      start();
    }
    isAnswered = false;
    shared.send("ping");
  };
  const leave = () => shared.send("leave");
  const rejoin = () => shared.send("join"); // the page returns from the browser's history
  const timer = window.setInterval(ping, PING_MS);
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", rejoin);
  const shared: Connection = {
    send: (message) => port?.postMessage(message),
    close: () => {
      isClosed = true;
      window.clearInterval(timer);
      window.removeEventListener("pagehide", leave);
      window.removeEventListener("pageshow", rejoin);
      leave();
      port?.close();
      own?.close();
    },
  };
  start();
  return shared;
}

/** A stream of this tab, while the tab is visible. */
function openOwn(): Connection {
  const relay = new EventRelay();
  const port = { postMessage: receive };
  const update = () => {
    relay.receive(port, document.hidden ? "leave" : "join");
    isStreaming.value &&= !document.hidden;
  };
  document.addEventListener("visibilitychange", update);
  const timer = window.setInterval(update, PING_MS);
  update();
  return {
    send: (message) => relay.receive(port, message),
    close: () => {
      window.clearInterval(timer);
      document.removeEventListener("visibilitychange", update);
      relay.receive(port, "leave");
    },
  };
}

function connect(): void {
  connection ??= typeof SharedWorker === "undefined" ? openOwn() : openShared();
}

function disconnect(): void {
  connection?.close();
  connection = null;
  isStreaming.value = false;
}

isSignedOut.subscribe((isOut) => {
  if (isOut) {
    disconnect();
  } else if (listeners.size > 0) {
    connect(); // its first event is `open`, after which all is read again
  }
});

/** Calls the listener for each event, until the returned function is called. After a gap, read all again. */
export function followEvents(listener: Listener): () => void {
  listeners.add(listener);
  if (!isSignedOut.peek()) {
    connect();
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      disconnect();
    }
  };
}
