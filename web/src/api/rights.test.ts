import { describe, expect, it } from "vitest";
import {
  whyNoAdmin,
  whyNoChange,
  whyNoDelete,
  whyNoFork,
  whyNoMetric,
  whyNoNodes,
  whyNoReserve,
  whyNoSubmit,
} from "./rights";
import type { Session } from "./session";

const user = (change: Partial<Session>): Session => ({
  user: "alice",
  scopes: ["read", "submit"],
  token: "t",
  owner: false,
  admin_queues: [],
  csrf: "c",
  expires_at: null,
  server: "box",
  version: "1",
  ...change,
});
const run = { name: "bob/mnist/1", spec: { queue: "vision" } };

describe("the rights of a user", () => {
  it("are over the own runs, those of the own queues, and all runs for the owner", () => {
    expect(whyNoChange(run, user({}))).toContain("Only bob");
    expect(whyNoChange(run, user({ user: "bob" }))).toBe("");
    expect(whyNoChange(run, user({ admin_queues: ["speech"] }))).not.toBe("");
    expect(whyNoChange(run, user({ admin_queues: ["vision"] }))).toBe("");
    expect(whyNoChange(run, user({ owner: true }))).toBe("");
    expect(whyNoChange({ name: "alice2/mnist/1", spec: {} }, user({}))).not.toBe("");
  });

  it("are within the scopes of the token", () => {
    const reader = user({ user: "bob", owner: true, scopes: ["read"] });
    expect(whyNoChange(run, reader)).toContain("only read");
    expect(whyNoSubmit(reader)).toContain("only read");
    expect(whyNoAdmin(user({}))).toContain("`admin`");
    expect(whyNoAdmin(user({ scopes: ["read", "submit", "admin"] }))).toBe("");
    expect(whyNoSubmit(null)).not.toBe("");
  });

  it("leave runs without code unforked, and those of others forkable", () => {
    const fork = (offline: boolean, code: string | null) => whyNoFork({ offline, spec: { code } }, user({}));
    expect(fork(true, null)).toContain("without its code");
    expect([fork(true, "c"), fork(false, null)]).toEqual(["", ""]);
  });

  it("over a dataset belong to the users of its versions", () => {
    const versions = [
      { number: 2, created_by: "alice" },
      { number: 1, created_by: "bob" },
    ];
    expect(whyNoDelete(versions, user({}))).toContain("bob pushed version 1");
    expect(whyNoDelete(versions.slice(0, 1), user({}))).toBe("");
    expect(whyNoDelete(versions, user({ owner: true }))).toBe("");
    expect(whyNoMetric(versions, user({}))).toContain("Only bob");
    expect(whyNoMetric(versions, user({ user: "bob" }))).toBe("");
    expect(whyNoMetric([], user({ scopes: ["read"] }))).toContain("only read");
  });

  it("over the cluster need a role and the scope `admin`", () => {
    const all = user({ owner: true, scopes: ["read", "submit", "admin"] });
    expect(whyNoNodes(user({ owner: true }))).toContain("`admin`");
    expect(whyNoNodes(user({ admin_queues: ["vision"] }))).toContain("Only the owner");
    expect(whyNoReserve(user({}))).toContain("for their queues");
    expect(whyNoReserve({ ...all, owner: false, admin_queues: ["vision"] })).toBe("");
    expect([whyNoNodes(all), whyNoReserve(all)]).toEqual(["", ""]);
  });
});
