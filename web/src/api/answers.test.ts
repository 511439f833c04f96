import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { isAway, noteAnswer, noteDate, noted, serverNow, watched } from "./answers";

const HOUR_MS = 3_600_000;

describe("a server that does not answer", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    isAway.value = false;
  });
  afterEach(() => vi.useRealTimers());

  it("is away once a request has waited for long, until something comes from it", async () => {
    const request = watched(new Promise(() => undefined));
    await vi.advanceTimersByTimeAsync(9000);
    expect(isAway.value).toBe(false);
    noteAnswer(); // an event
    await vi.advanceTimersByTimeAsync(9000);
    expect(isAway.value).toBe(false);
    await vi.advanceTimersByTimeAsync(3000);
    expect(isAway.value).toBe(true);
    noteAnswer();
    expect(isAway.value).toBe(false);
    void request;
  });

  it("is away after a failed request, but not after one that the page cancels", async () => {
    await expect(noted(Promise.reject(new DOMException("", "AbortError")))).rejects.toThrow();
    expect(isAway.value).toBe(false);
    await expect(noted(Promise.reject(new TypeError("Failed to fetch")))).rejects.toThrow();
    expect(isAway.value).toBe(true);
    await noted(Promise.resolve(new Response("", { status: 503 })));
    expect(isAway.value).toBe(false);
  });
});

describe("the time of the server", () => {
  const take = (date: string, cache: string) =>
    noteDate(new Headers({ Date: date, "Cache-Control": cache }), Date.now());
  const ahead = () => Math.round((serverNow() - Date.now()) / HOUR_MS);

  it("is that of its answers, where the clock of this machine is wrong", () => {
    take(new Date(Date.now() + 5 * HOUR_MS).toUTCString(), "private, no-cache");
    expect(ahead()).toBe(5);
    take(new Date(Date.now() - 90 * HOUR_MS).toUTCString(), "public, immutable"); // from the browser's cache
    take("nonsense", "no-cache");
    expect(ahead()).toBe(5);
    take(new Date().toUTCString(), "private, no-cache");
    expect(serverNow() - Date.now()).toBeLessThan(1000);
  });
});
