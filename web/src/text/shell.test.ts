import { expect, test } from "vitest";
import { commandText, parseParam, quoteWord, reproduceCommand } from "./shell";

test("words are quoted where a shell would read something else", () => {
  expect(quoteWord("main.py")).toBe("main.py");
  expect(quoteWord("")).toBe("''");
  expect(quoteWord("$(rm -rf ~) it's")).toBe(`'$(rm -rf ~) it'\\''s'`);
  expect(commandText(["python", "main.py", "--name=a b"])).toBe("python main.py '--name=a b'");
  expect(reproduceCommand({ name: "alice/mnist/12" })).toBe("hop fork alice/mnist/12");
});

test.each([
  ["1e-4", 0.1, 1e-4],
  [" 12 ", 3, 12],
  ["true", false, true],
  ["None", 1, null],
  ["12", "11", "12"],
  ["adam", 1, "adam"],
  ["1e999", 1, "1e999"],
  ["0x10", 1, "0x10"],
])("%j beside %j is %j", (text, current, value) => {
  expect(parseParam(text, current)).toBe(value);
});
