import { expect, it } from "vitest";
import { expiry, roleText, widest } from "./token_text";

const user = {
  user: "alice",
  scopes: [],
  token: "t",
  owner: false,
  admin_queues: ["speech", "vision"],
  csrf: "",
  expires_at: null,
  server: "box",
  version: "1",
};

it("a token has the scope that includes its others", () => {
  expect(widest(["read"])).toBe("read");
  expect(widest(["read", "submit"])).toBe("submit");
  expect(widest(["admin", "read"])).toBe("admin");
});

it("a lifetime ends days from now, or never", () => {
  expect(expiry(7, Date.UTC(2026, 0, 1))).toBe("2026-01-08T00:00:00.000Z");
  expect(expiry(null, 0)).toBeNull();
});

it("the role names the queues of an administrator", () => {
  expect(roleText(user).join(" ")).toContain("the queues speech, vision");
  expect(roleText({ ...user, owner: true })).toHaveLength(1);
});
