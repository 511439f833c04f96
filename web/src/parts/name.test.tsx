import { cleanup, render } from "@testing-library/preact";
import { afterEach, expect, it } from "vitest";
import { Name } from "./name";

afterEach(cleanup);

it("isolates a name, and shows its direction marks as signs", () => {
  const { container } = render(<Name text={"\u202egnp.exe"} title={"a/\u202egnp.exe"} />);
  expect(container.innerHTML).toBe('<bdi title="a/\ufffdgnp.exe">\ufffdgnp.exe</bdi>');
});
