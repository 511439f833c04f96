import { beforeEach, describe, expect, it, vi } from "vitest";
import { EventRelay, type FromRelay } from "./event_relay";

class FakeSource {
  static all: FakeSource[] = [];
  onopen: () => void = () => undefined;
  onmessage: (message: { lastEventId: string; data: string }) => void = () => undefined;
  onerror: () => void = () => undefined;
  onheartbeat: (message: { lastEventId: string }) => void = () => undefined;
  readyState = 0;
  constructor(readonly url: string) {
    FakeSource.all.push(this);
  }
  close() {
    this.readyState = 2;
  }
  addEventListener(_: "heartbeat", listener: typeof this.onheartbeat) {
    this.onheartbeat = listener;
  }
  open() {
    this.readyState = 1;
    this.onopen();
  }
  emit(id: string) {
    this.onmessage({ lastEventId: id, data: `"${id}"` });
  }
}

const port = () => {
  const got: FromRelay[] = [];
  return { got, postMessage: (message: FromRelay) => got.push(message), data: () => got.flatMap(dataOf) };
};
const dataOf = (message: FromRelay) => ("data" in message ? [message.data] : []);

describe("the relay of events", () => {
  let now = 0;
  let relay: EventRelay;
  beforeEach(() => {
    vi.useFakeTimers();
    FakeSource.all = [];
    now = 0;
    relay = new EventRelay(
      (url) => new FakeSource(url) as unknown as EventSource,
      () => now,
    );
    return () => vi.useRealTimers();
  });

  it("has one connection for all ports, and closes it with the last", () => {
    const ports = Array.from({ length: 8 }, port);
    ports.forEach((each) => relay.receive(each, "join"));
    expect(FakeSource.all.map((source) => source.url)).toEqual(["/api/v1/events"]);
    const [source] = FakeSource.all;
    source?.open();
    source?.emit("1");
    ports.slice(1).forEach((each) => relay.receive(each, "leave"));
    source?.emit("2");
    expect(ports[0]?.data()).toEqual(['"1"', '"2"']);
    expect(ports[1]?.data()).toEqual(['"1"']);
    expect(source?.readyState).toBe(1);
    if (ports[0]) {
      relay.receive(ports[0], "leave");
    }
    expect(source?.readyState).toBe(2);
  });

  it("says to a late port that it must read all", () => {
    const [first, late] = [port(), port()];
    relay.receive(first, "join");
    FakeSource.all[0]?.open();
    relay.receive(late, "join");
    expect(late.got[0]).toEqual({ isOpen: true });
    expect(late.data().map((text) => (JSON.parse(text) as { kind: string }).kind)).toEqual(["open"]);
    relay.receive(late, "ping");
    expect(late.data()).toHaveLength(1);
  });

  it("continues behind the last event after a refused connection", () => {
    const one = port();
    relay.receive(one, "join");
    const [source] = FakeSource.all;
    source?.open();
    source?.emit("7-1");
    source?.close();
    source?.onerror();
    expect(one.got.at(-1)).toEqual({ isOpen: false });
    vi.advanceTimersByTime(20_000);
    expect(FakeSource.all.map((each) => each.url)).toEqual(["/api/v1/events", "/api/v1/events?after=7-1"]);
  });

  it("leaves the reconnecting of a broken connection to the browser", () => {
    relay.receive(port(), "join");
    FakeSource.all[0]?.onerror();
    vi.advanceTimersByTime(20_000);
    expect(FakeSource.all).toHaveLength(1);
  });

  it("replaces a connection that is dead without an error, behind its last heartbeat", () => {
    const one = port();
    relay.receive(one, "join");
    const [source] = FakeSource.all;
    source?.open();
    for (let beat = 1; beat <= 9; beat += 1) {
      vi.advanceTimersByTime(20_000);
      source?.onheartbeat({ lastEventId: `7-${beat}` });
    }
    expect(FakeSource.all).toHaveLength(1);
    expect(one.got.at(-1)).toEqual({ isOpen: true });
    vi.advanceTimersByTime(30_000);
    expect(source?.readyState).toBe(2);
    expect(one.got.at(-1)).toEqual({ isOpen: false });
    expect(FakeSource.all[1]?.url).toBe("/api/v1/events?after=7-9");
  });

  it("forgets a port that is silent, and takes it back as a new one", () => {
    const [alive, frozen] = [port(), port()];
    relay.receive(alive, "join");
    relay.receive(frozen, "join");
    FakeSource.all[0]?.open();
    now = 6 * 60_000;
    relay.receive(alive, "ping");
    FakeSource.all[0]?.emit("1");
    expect(frozen.data()).toEqual([]);
    relay.receive(frozen, "ping");
    expect(frozen.data()).toHaveLength(1); // `open`: read all again
  });
});
