import { expect, it } from "vitest";
import type { Schemas } from "@/api/client";
import { eventWords } from "./event_words";

it("writes kinds of events in words, also those of a newer server", () => {
  const kinds: Schemas["RunEvent"]["kind"][] = ["unread-params", "stop-trial", "alert"];
  expect(kinds.map(eventWords)).toEqual(["parameters not read", "trial stopped", "alert"]);
  expect(eventWords("moved-far")).toBe("moved far");
});
