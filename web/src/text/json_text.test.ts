import { describe, expect, it } from "vitest";
import { formatJson } from "./json_text";

describe("formatJson", () => {
  it("indents JSON, and leaves what is none or would change", () => {
    expect(formatJson('{"a":[1,2]}')).toBe('{\n  "a": [\n    1,\n    2\n  ]\n}');
    expect(formatJson('{"a":')).toBeNull();
    expect(formatJson('{"id":9007199254740993}')).toBeNull();
  });
});
