/** One connection to the server's stream of events, for all ports. The part that talks to the server:
 *  in a browser with shared workers it runs there once for all tabs, else in each tab. */

/** join: sends events from now on. ping: is answered, and joins a port that was forgotten. */
export type ToRelay = "join" | "ping" | "leave";

/** The state of the connection, also after each heartbeat; or the `data` of an event. */
export type FromRelay = { isOpen: boolean } | { data: string };

export interface RelayPort {
  postMessage: (message: FromRelay) => void;
}

export const RELAY_NAME = "hopyard-events";
const RETRY_MS = 2000;
const SILENT_MS = 5 * 60_000; // a closed tab may not have said so; a hidden one pings once a minute
const DEAD_MS = 25_000; // a heartbeat comes every 15 s; after a change of the network, no error says so
const OPEN = JSON.stringify({ kind: "open", change: "", subject: "", detail: "" });

/** Connects while there is a port. A new port gets `open` once the stream flows; after a lost connection, the stream
 *  continues behind the last event, so that each port gets all later changes. */
export class EventRelay {
  private readonly heardAt = new Map<RelayPort, number>();
  private source: EventSource | null = null;
  private isOpen = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private deadTimer: ReturnType<typeof setTimeout> | undefined;
  private last = "";

  constructor(
    private readonly openSource: (url: string) => EventSource = (url) => new EventSource(url),
    private readonly now: () => number = Date.now,
  ) {}

  receive(port: RelayPort, message: ToRelay): void {
    if (message === "leave") {
      this.heardAt.delete(port);
    } else {
      const isNew = !this.heardAt.has(port);
      this.heardAt.set(port, this.now());
      port.postMessage({ isOpen: this.isOpen });
      if (isNew && this.isOpen) {
        port.postMessage({ data: OPEN });
      }
    }
    for (const [each, at] of this.heardAt) {
      if (this.now() - at > SILENT_MS) {
        this.heardAt.delete(each);
      }
    }
    if (this.heardAt.size === 0) {
      this.disconnect();
    } else if (this.source === null) {
      this.connect();
    }
  }

  private connect(): void {
    clearTimeout(this.timer);
    const isContinued = this.last !== "";
    const source = this.openSource(
      `/api/v1/events${isContinued ? `?after=${encodeURIComponent(this.last)}` : ""}`,
    );
    this.source = source;
    this.expectMore();
    source.onopen = () => {
      this.expectMore();
      this.setOpen(true);
    };
    source.onmessage = (message: MessageEvent<string>) => {
      this.expectMore();
      this.last = message.lastEventId;
      this.send({ data: message.data });
    };
    source.addEventListener("heartbeat", (message: MessageEvent<string>) => {
      this.expectMore();
      this.last = message.lastEventId;
      this.send({ isOpen: true });
    });
    source.onerror = () => {
      this.setOpen(false);
      // the browser reconnects by itself after a broken connection, but not after an error's response
      if (source.readyState === 2) {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.connect(), RETRY_MS);
      }
    };
  }

  /** Connects again where nothing comes for long. */
  private expectMore(): void {
    clearTimeout(this.deadTimer);
    this.deadTimer = setTimeout(() => {
      this.source?.close();
      this.setOpen(false);
      this.connect();
    }, DEAD_MS);
  }

  private disconnect(): void {
    clearTimeout(this.timer);
    clearTimeout(this.deadTimer);
    this.source?.close();
    this.source = null;
    this.isOpen = false;
    this.last = ""; // nothing to continue: the next port reads all
  }

  private setOpen(isOpen: boolean): void {
    if (isOpen !== this.isOpen) {
      this.isOpen = isOpen;
      this.send({ isOpen });
    }
  }

  private send(message: FromRelay): void {
    [...this.heardAt.keys()].forEach((port) => port.postMessage(message));
  }
}
