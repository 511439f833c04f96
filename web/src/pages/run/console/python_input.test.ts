import { describe, expect, it } from "vitest";
import { isIncomplete, modeOf, nameBefore } from "./python_input";

describe("isIncomplete", () => {
  it.each(["x", "x = 1  # a: b", "f(1)", "'a:'", "if x: y", "for i in x:\n  f(i)\n", "d = {1: 2}", "a\nb"])(
    "evaluates %j",
    (text) => expect(isIncomplete(text)).toBe(false),
  );
  it.each(["if x:", "f(", "x = [1,", '"""a', "x = 1 + \\", "for i in x:\n  f(i)", "@cached", "f('(', \"(\""])(
    "waits for the rest of %j",
    (text) => expect(isIncomplete(text)).toBe(true),
  );
});

describe("modeOf", () => {
  it.each(["x", "if x:\n  y\nelse:\n  z\n", "f(\n1,\n2\n)", '"""a\nb"""', "@cached\ndef f():\n  pass\n"])(
    "takes %j as one statement",
    (text) => expect(modeOf(text)).toBe("single"),
  );
  it.each(["x = 1\ny = 2", "if x:\n  y\nz"])("takes %j as several", (text) =>
    expect(modeOf(text)).toBe("script"),
  );
});

it("completes the name before the caret", () => {
  expect(["f(model.la", "x = ", "größe.a"].map(nameBefore)).toEqual(["model.la", "", "größe.a"]);
});
