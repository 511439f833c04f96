import { expect, it } from "vitest";
import { session, type Session } from "./session";
import { userStorage } from "./user_storage";

it("keeps what users of one browser typed apart", () => {
  const logIn = (user: string) => {
    session.value = { user } as Session;
  };
  logIn("ann");
  userStorage.setItem("draft", "hers");
  logIn("bob");
  expect(userStorage.getItem("draft")).toBeNull();
  userStorage.setItem("draft", "his");
  userStorage.removeItem("draft");
  logIn("ann");
  expect(userStorage.getItem("draft")).toBe("hers");
});
