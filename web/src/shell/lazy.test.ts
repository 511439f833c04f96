import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { ApiError } from "@/api/client";

const server = vi.hoisted(() => ({ load: vi.fn<() => Promise<void>>() }));
vi.mock("@/api/session", () => ({ loadSession: () => server.load() }));
const { loadPart } = await import("./lazy");

const AWAY = new ApiError(0, "server_unavailable", "away");

beforeEach(() => {
  vi.useFakeTimers();
  sessionStorage.clear();
  server.load.mockReset();
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

it("a part waits for a server that is away", async () => {
  server.load.mockRejectedValueOnce(AWAY).mockRejectedValueOnce(AWAY).mockResolvedValue();
  const load = vi.fn(() =>
    server.load.mock.calls.length < 3 ? Promise.reject(AWAY) : Promise.resolve("part"),
  );
  const part = loadPart(load);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(await part).toBe("part");
  expect(load).toHaveBeenCalledTimes(2);
});

it("a part that another version no longer has loads the page again, once", async () => {
  server.load.mockResolvedValue();
  const reload = vi.spyOn(window.location, "reload").mockImplementation(() => undefined);
  void loadPart(() => Promise.reject(new Error("404")));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(reload).toHaveBeenCalledTimes(1);
  await expect(loadPart(() => Promise.reject(new Error("404")))).rejects.toThrow("404");
  expect(reload).toHaveBeenCalledTimes(1);
});
