import { beforeEach, expect, it, vi } from "vitest";
import { ApiError } from "@/api/client";
import type { Report } from "./blocks";
import { readDraft, ReportSession, type ReportApi } from "./session";

const REPORT: Report = {
  id: "00000000000000aa",
  user: "alice",
  title: "Loss",
  access: "write",
  revision: 1,
  created_at: "2026-01-01T00:00:00Z",
  updated_at: "2026-01-01T00:00:00Z",
  updated_by: "alice",
  may_write: true,
  blocks: [],
};

/** A server with one report. */
class FakeServer implements ReportApi {
  report = REPORT;
  failure: ApiError | null = null;
  puts = 0;

  get = () => (this.failure ? Promise.reject(this.failure) : Promise.resolve(this.report));

  put: ReportApi["put"] = (_, { revision, ...content }) => {
    this.puts += 1;
    if (this.failure) {
      return Promise.reject(this.failure);
    }
    if (revision !== this.report.revision) {
      return Promise.reject(new ApiError(409, "conflict", "changed"));
    }
    this.report = { ...this.report, ...content, revision: revision + 1 };
    return Promise.resolve(this.report);
  };

  changeByBob(title: string): void {
    this.report = { ...this.report, title, revision: this.report.revision + 1, updated_by: "bob" };
  }
}

let server: FakeServer;
const open = () => new ReportSession(server.report, server, localStorage, () => undefined);

beforeEach(() => {
  localStorage.clear();
  server = new FakeServer();
  vi.useFakeTimers();
  return () => vi.useRealTimers();
});

it("saves a while after the last change, once", async () => {
  const session = open();
  session.change({ title: "A" });
  session.change({ title: "AB" });
  expect(session.state.status).toBe("unsaved");
  await vi.runAllTimersAsync();
  expect([server.puts, server.report.title, session.state.status]).toEqual([1, "AB", "saved"]);
  expect(readDraft(localStorage, REPORT.id)).toBeNull();
});

it("keeps what was typed while the server is away, also over a reload", async () => {
  server.failure = new ApiError(0, "server_unavailable", "the server does not answer");
  const session = open();
  session.change({ title: "Typed" });
  await session.save();
  expect(session.state.status).toBe("away");
  session.close();
  server.failure = null;
  server.puts = 0;
  const reopened = open();
  expect(reopened.state.content.title).toBe("Typed");
  await vi.runAllTimersAsync();
  expect([server.report.title, reopened.state.status]).toEqual(["Typed", "saved"]);
});

it("shows the work of others at once where nothing was typed", async () => {
  const session = open();
  server.changeByBob("Theirs");
  await session.refresh();
  expect([session.state.content.title, session.state.status]).toEqual(["Theirs", "saved"]);
});

it("never replaces the work of others without a choice", async () => {
  const session = open();
  server.changeByBob("Theirs");
  session.change({ title: "Mine" });
  await vi.runAllTimersAsync();
  expect([session.state.status, session.state.theirs?.title]).toEqual(["conflict", "Theirs"]);
  session.change({ title: "Mine 2" });
  await vi.runAllTimersAsync();
  expect(server.report.title).toBe("Theirs");
  await session.keepMine();
  expect([server.report.title, session.state.status]).toEqual(["Mine 2", "saved"]);
});

it("takes the work of others if that is the choice", async () => {
  const session = open();
  session.change({ title: "Mine" });
  server.changeByBob("Theirs");
  await session.refresh();
  expect(session.state.status).toBe("conflict");
  session.takeTheirs();
  expect([session.state.content.title, session.state.status]).toEqual(["Theirs", "saved"]);
  expect(readDraft(localStorage, REPORT.id)).toBeNull();
});

it("opens a draft that is older than the report as a conflict", () => {
  const session = open();
  session.change({ title: "Mine" });
  server.changeByBob("Theirs");
  expect(open().state).toMatchObject({
    status: "conflict",
    content: { title: "Mine" },
    theirs: { title: "Theirs" },
  });
});

it("says why the server refuses a change, and tries again after the next one", async () => {
  const session = open();
  server.failure = new ApiError(422, "bad_spec", "title: too long");
  session.change({ title: "x".repeat(300) });
  await vi.runAllTimersAsync();
  expect([session.state.status, (session.state.error as ApiError).message]).toEqual([
    "refused",
    "title: too long",
  ]);
  server.failure = null;
  session.change({ title: "short" });
  await vi.runAllTimersAsync();
  expect([server.report.title, session.state.status]).toEqual(["short", "saved"]);
});

it("keeps the text of a report that was removed", async () => {
  const session = open();
  server.failure = new ApiError(404, "not_found", "gone");
  session.change({ title: "Mine" });
  await vi.runAllTimersAsync();
  expect([session.state.status, session.state.content.title]).toEqual(["gone", "Mine"]);
});

it("is not set back by a read that began before a save", async () => {
  const session = open();
  const old = server.report;
  let answer: (report: Report) => void = () => undefined;
  const { get } = server;
  server.get = () => new Promise((resolve) => (answer = resolve));
  const reading = session.refresh();
  session.change({ title: "Typed" });
  await session.save();
  server.get = get;
  answer(old);
  await reading;
  expect([session.state.status, session.state.content.title]).toEqual(["saved", "Typed"]);
});

it("asks what stays after the server was restored to an earlier revision", async () => {
  const session = open();
  const backup = server.report;
  session.change({ title: "After the backup" });
  await session.save();
  server.report = backup;
  await session.refresh();
  expect([session.state.status, session.state.content.title]).toEqual(["conflict", "After the backup"]);
  await session.keepMine();
  expect([session.state.status, server.report.title]).toEqual(["saved", "After the backup"]);
});
