import { cleanup, render } from "@testing-library/preact";
import { afterEach, expect, it } from "vitest";
import { Line } from "./log_line";

afterEach(cleanup);

const FILES = new Set(["train.py", "<b>.py"]);
const show = (text: string, files: ReadonlySet<string> | null, mark: RegExp | null = null) =>
  render(<Line number={1} line={{ text }} mark={mark} isCurrent={false} run="run1" files={files} />)
    .container;

it("links a coloured place as one, with its colours and the marks of a search", () => {
  const text = '  File \x1b[35m"/a/work/train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35mmain\x1b[0m';
  const shown = show(text, FILES, /train/g);
  const [link, ...others] = shown.querySelectorAll("a");
  expect(others).toEqual([]);
  expect(link?.textContent).toBe('File "/a/work/train.py", line 3');
  expect(link?.getAttribute("href")).toBe("/runs/run1?tab=files&files=code&file=train.py&line=3");
  expect(link?.querySelector("mark")?.textContent).toBe("train");
  expect(shown.querySelector("code")?.textContent).toBe('  File "/a/work/train.py", line 3, in main');
});

it("links nothing before the files of the code are known, and shows markup as text", () => {
  const text = 'File "/a/work/<b>.py", line 1';
  expect(show(text, null).querySelector("a, b")).toBeNull();
  cleanup();
  const shown = show(text, FILES);
  expect(shown.querySelector("a")?.textContent).toBe(text);
  expect(shown.querySelector("b")).toBeNull();
});
