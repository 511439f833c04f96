import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { ServerEvent } from "./events";
import type { FromRelay, ToRelay } from "./event_relay";

const EVENT = JSON.stringify({ kind: "run", change: "phase", subject: "r", detail: "" });

const noMessage: (message: { data: FromRelay }) => void = () => undefined;

class FakeWorker {
  static all: FakeWorker[] = [];
  onerror: () => void = () => undefined;
  sent: ToRelay[] = [];
  isDead = false;
  port = {
    onmessage: noMessage,
    postMessage: (message: ToRelay) => {
      this.sent.push(message);
      if (!this.isDead && message !== "leave") {
        this.port.onmessage({ data: { isOpen: true } });
      }
    },
    close: () => undefined,
  };
  constructor() {
    FakeWorker.all.push(this);
  }
}

class FakeSource {
  static all: FakeSource[] = [];
  onopen: () => void = () => undefined;
  onmessage: (message: { lastEventId: string; data: string }) => void = () => undefined;
  readyState = 1;
  constructor(readonly url: string) {
    FakeSource.all.push(this);
  }
  addEventListener() {
    // no heartbeats here
  }
  close() {
    this.readyState = 2;
  }
}

describe("the events of a tab", () => {
  beforeEach(() => {
    vi.resetModules();
    vi.useFakeTimers();
    FakeWorker.all = [];
    FakeSource.all = [];
    vi.stubGlobal("EventSource", FakeSource);
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("come from the shared worker to all listeners, until the last is gone", async () => {
    vi.stubGlobal("SharedWorker", FakeWorker);
    const { followEvents, isStreaming } = await import("./events");
    const got: ServerEvent[] = [];
    const stops = [followEvents((event) => got.push(event)), followEvents((event) => got.push(event))];
    expect(FakeWorker.all).toHaveLength(1);
    expect(isStreaming.value).toBe(true);
    FakeWorker.all[0]?.port.onmessage({ data: { data: EVENT } });
    expect(got.map((event) => event.subject)).toEqual(["r", "r"]);
    stops.forEach((stop) => stop());
    expect(FakeWorker.all[0]?.sent.at(-1)).toBe("leave");
    expect(isStreaming.value).toBe(false);
    expect(FakeSource.all).toHaveLength(0);
  });

  it("come from a new worker where the first no longer answers", async () => {
    vi.stubGlobal("SharedWorker", FakeWorker);
    const { followEvents } = await import("./events");
    const stop = followEvents(() => undefined);
    vi.advanceTimersByTime(60_000);
    expect(FakeWorker.all).toHaveLength(1);
    if (FakeWorker.all[0]) {
      FakeWorker.all[0].isDead = true;
    }
    vi.advanceTimersByTime(30_000);
    expect(FakeWorker.all).toHaveLength(2);
    expect(FakeWorker.all[1]?.sent[0]).toBe("join");
    stop();
  });

  it("come from a stream of the visible tab where a worker is absent, refused or broken", async () => {
    for (const kind of ["absent", "refused", "broken"]) {
      vi.resetModules();
      FakeSource.all = [];
      vi.stubGlobal(
        "SharedWorker",
        {
          absent: undefined,
          refused: () => {
            throw new DOMException("denied", "SecurityError"); // as a constructor, an arrow function throws too
          },
          broken: FakeWorker,
        }[kind],
      );
      const { followEvents, isStreaming } = await import("./events");
      const got: ServerEvent[] = [];
      const stop = followEvents((event) => got.push(event));
      FakeWorker.all.at(-1)?.onerror();
      expect(FakeSource.all, kind).toHaveLength(1);
      FakeSource.all[0]?.onopen();
      FakeSource.all[0]?.onmessage({ lastEventId: "1", data: EVENT });
      expect(got.map((event) => event.kind)).toEqual(["run"]);

      const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
      document.dispatchEvent(new Event("visibilitychange"));
      expect(FakeSource.all[0]?.readyState, kind).toBe(2);
      expect(isStreaming.value).toBe(false);
      hidden.mockReturnValue(false);
      document.dispatchEvent(new Event("visibilitychange"));
      expect(FakeSource.all, kind).toHaveLength(2);
      hidden.mockRestore();
      stop();
      expect(FakeSource.all[1]?.readyState, kind).toBe(2);
    }
  });
});
