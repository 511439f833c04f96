import { expect, it } from "vitest";
import { addressText } from "./address_text";

it("an address of the server's machine is named so", () => {
  expect(addressText("uid 1000")).toBe("the server's machine (user ID 1000)");
  expect(addressText("10.0.0.7")).toBe("10.0.0.7");
  expect(addressText("")).toBe("unknown");
});
