import { expect, it } from "vitest";
import { findPlaces, placeAddress, raisingPlace } from "./traceback";

const FILES = new Set(["train.py", "model/net.py", "work/data.py", "a <b>.py"]);
const WORK = "/home/ann/work/attempts/run1.1/0/work";
const places = (text: string) => findPlaces(text, FILES).map(({ path, line }) => `${path} ${line}`);

it("finds places of Python, of warnings and of drawn tracebacks", () => {
  expect(places(`  File "${WORK}/train.py", line 12, in <module>`)).toEqual(["train.py 12"]);
  expect(places(`${WORK}/model/net.py:7: UserWarning: slow`)).toEqual(["model/net.py 7"]);
  expect(places(`│ ${WORK}/train.py:3 in main │`)).toEqual(["train.py 3"]);
  expect(places("SyntaxError: invalid syntax (train.py, line 4)")).toEqual(["train.py 4"]);
  expect(places("./train.py:5 model/net.py:6")).toEqual(["train.py 5", "model/net.py 6"]);
  expect(places(`File "${[WORK, "work", "data.py"].join("/")}", line 1`)).toEqual(["work/data.py 1"]);
  expect(places(`File "${WORK}/a <b>.py", line 2`)).toEqual(["a <b>.py 2"]);
});

it("finds no place outside of the code", () => {
  expect(places('File "/usr/lib/python3.12/train.py", line 12, in run')).toEqual([]);
  expect(places('File "<frozen runpy>", line 12, in run')).toEqual([]);
  expect(places(`File "${WORK}/venv/train.py", line 12`)).toEqual([]);
  expect(places(`File "${WORK}/train.py", line 0`)).toEqual([]);
  expect(places("epoch 1, line 12, time 10:30, strain.py:4x")).toEqual([]);
});

it("says where in the text a place is", () => {
  const text = `  File "${WORK}/train.py", line 12, in f`;
  const [place] = findPlaces(text, FILES);
  expect(text.slice(place?.begin, place?.end)).toBe(`File "${WORK}/train.py", line 12`);
  expect(placeAddress("run1", place ?? { path: "", line: 0 })).toBe(
    "/runs/run1?tab=files&files=code&file=train.py&line=12",
  );
});

it("takes the innermost place of the last traceback", () => {
  const output = [
    "Traceback (most recent call last):",
    `  File "${WORK}/train.py", line 1, in <module>`,
    "KeyError: 'x'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    `  File "${WORK}/train.py", line 2, in <module>`,
    "    step()",
    `  File "${WORK}/model/net.py", line 3, in step`,
    '  File "/usr/lib/python3/torch/nn.py", line 4, in forward',
    "ValueError: shape",
    `  File "${WORK}/train.py", line 9`,
  ].join("\n");
  expect(raisingPlace(output, FILES)).toEqual(expect.objectContaining({ path: "model/net.py", line: 3 }));
  const unreadable = `  File "${WORK}/train.py", line 5\n    f(\nSyntaxError: '(' was never closed\n`;
  expect(raisingPlace(unreadable, FILES)?.line).toBe(5);
  expect(raisingPlace("done\n", FILES)).toBeNull();
});
