import { afterEach, expect, it, vi } from "vitest";
import { parseView } from "./view";

const server = vi.hoisted(() => ({ get: vi.fn<() => Promise<unknown>>() }));
vi.mock("@/api/client", () => ({
  api: { GET: server.get },
  data: (request: Promise<{ data: unknown }>) => request.then((answer) => answer.data),
}));
const { readFirstPage, startFirstPage } = await import("./first_page");

const view = (search: string) => parseView(new URLSearchParams(search));
const page = (next: string) => Promise.resolve({ data: { runs: [], next } });

afterEach(() => {
  server.get.mockReset();
  vi.useRealTimers();
});

it("the request of the start is the first page of its view, once", async () => {
  server.get.mockReturnValueOnce(page("early")).mockReturnValueOnce(page("later"));
  startFirstPage("sort=loss&column=name");
  expect((await readFirstPage(view("sort=loss"))).next).toBe("early");
  expect((await readFirstPage(view("sort=loss"))).next).toBe("later");
  expect(server.get).toHaveBeenCalledTimes(2);
});

it("another view, an old answer and a refused request are read again", async () => {
  server.get.mockReturnValue(page("fresh"));
  startFirstPage("sort=loss");
  expect((await readFirstPage(view("sort=-loss"))).next).toBe("fresh");

  vi.useFakeTimers();
  server.get.mockReturnValueOnce(page("old"));
  startFirstPage("sort=loss");
  vi.advanceTimersByTime(60_000);
  expect((await readFirstPage(view("sort=loss"))).next).toBe("fresh");

  server.get.mockReturnValueOnce(Promise.reject(new Error("no session")));
  startFirstPage("sort=loss");
  expect((await readFirstPage(view("sort=loss"))).next).toBe("fresh");
});
