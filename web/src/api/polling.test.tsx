import { act, cleanup, renderHook } from "@testing-library/preact";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "./client";
import type { ServerEvent } from "./events";

const events = vi.hoisted(() => ({ listeners: new Set<(event: ServerEvent) => void>() }));
vi.mock("./events", async (original) => ({
  ...(await original<typeof import("./events")>()),
  followEvents: (listener: (event: ServerEvent) => void) => {
    events.listeners.add(listener);
    return () => events.listeners.delete(listener);
  },
}));
const { usePolled } = await import("./polling");
const { isStreaming } = await import("./events");

const event = (kind: ServerEvent["kind"], subject = "r"): ServerEvent => ({
  kind,
  change: "phase",
  subject,
  detail: "",
});
const emit = (...all: ServerEvent[]) =>
  all.forEach((each) => events.listeners.forEach((listen) => listen(each)));
const pass = (ms: number) =>
  act(async () => {
    await vi.advanceTimersByTimeAsync(ms);
  });

describe("data that is read again", () => {
  let reads = 0;
  let failure: Error | null = null;
  const load = () => {
    reads += 1;
    return failure === null ? Promise.resolve(reads) : Promise.reject(failure);
  };
  const show = () =>
    renderHook(() =>
      usePolled("key", load, () => 1000, {
        isAffected: (each) => each.subject === "r",
        intervalMs: () => null,
      }),
    ).result;

  beforeEach(() => {
    vi.useFakeTimers();
    [reads, failure] = [0, null];
    isStreaming.value = true;
  });
  afterEach(() => {
    cleanup();
    vi.useRealTimers();
  });

  it("is read after events that concern it, several at once, and not at intervals", async () => {
    const result = show();
    await pass(60_000);
    expect(reads).toBe(1);
    emit(event("run"), event("run"), event("run", "another"));
    await pass(5000);
    expect(result.current.data).toBe(2);
    emit(event("run", "another"));
    await pass(5000);
    expect(reads).toBe(2);
    emit(event("reset", ""));
    await pass(5000);
    expect(reads).toBe(3);
  });

  it("is read while events come without a pause", async () => {
    show();
    for (let at = 0; at < 100; at += 1) {
      emit(event("run"));
      await pass(100);
    }
    expect(reads).toBeGreaterThan(5);
    expect(reads).toBeLessThan(30);
  });

  it("is read at intervals while the stream is closed", async () => {
    show();
    await pass(1);
    isStreaming.value = false;
    await pass(10_000);
    expect(reads).toBeGreaterThan(8);
    isStreaming.value = true;
    await pass(1000);
    const before = reads;
    await pass(10_000);
    expect(reads).toBe(before);
  });

  it("stays, and is read again, while the server does not answer", async () => {
    const result = show();
    await pass(1);
    failure = new ApiError(0, "server_unavailable", "away");
    emit(event("run"));
    await pass(3000);
    expect(result.current.data).toBe(1);
    expect(result.current.error).toBe(failure);
    failure = null;
    await pass(3000);
    expect(result.current.error).toBeNull();
  });

  it("is not read again after a refusal, until an event concerns it", async () => {
    failure = new ApiError(404, "not_found", "no such run");
    const result = show();
    await pass(10_000);
    expect(reads).toBe(1);
    failure = null;
    emit(event("run"));
    await pass(1000);
    expect(result.current.data).toBe(2);
  });
});
