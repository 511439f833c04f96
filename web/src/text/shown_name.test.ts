import { expect, it } from "vitest";
import { savedName, shownName } from "./shown_name";

it("shows what reorders or hides characters of a name as a sign", () => {
  expect(shownName("\u202egnp.exe")).toBe("\ufffdgnp.exe");
  expect(shownName("a\u2066b\u200fc\u200bd\ne\x07f\ufeff")).toBe(
    "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\ufffd",
  );
  expect(savedName("\u202egnp.exe")).toBe("_gnp.exe");
});

it("keeps names in every script", () => {
  const names = ["main.py", "датасет", "数据 1.csv", "قائمة.txt", "é", "🙂.png", "a b"];
  expect(names.map(shownName)).toEqual(names);
});
