import { expect, it } from "vitest";
import { readView, withLayout, writeLayout, writeView } from "./compare_view";
import { compilePattern } from "@/text/pattern";

it("comes back from its address", () => {
  const address =
    "run=a&run=b&tab=table&x=metrics.epoch&smooth=0.6&logx=1&logy=1&group=params.lr&spread=deviation" +
    "&search=loss&pin=val_acc&panel=loss+vs+val_acc&hide=b&differences=1&rows=lr&sx=params.lr&sy=loss" +
    "&axis=params.lr&axis=val_acc&log=params.lr&brush=%5B%22params.lr%22%2C0.01%2C0.1%5D" +
    "&brush=%5B%22tags.team%22%2C%5B%22vision%22%5D%5D&colour=val_acc" +
    "&base=a&against=b&file=lib%2Fmodel.py&diff=unified&step=3";
  expect(writeView(readView(new URLSearchParams(address))).toString()).toBe(address);
});

it("is short by default and ignores what it does not know", () => {
  const view = readView(
    new URLSearchParams("run=a&run=a&tab=other&x=moon&smooth=7&panel=loss&brush=%5B1%5D&brush=("),
  );
  expect(view).toMatchObject({ tab: "curves", x: "step", smoothing: 0, pairs: [] });
  expect(writeView(view).toString()).toBe("run=a");
});

it("finds names by a regular expression in any case", () => {
  expect(compilePattern("^VAL")?.("val_acc")).toBe(true);
  expect(compilePattern("(")).toBeNull();
});

it("keeps the layout of the curves apart from the runs", () => {
  const view = readView(
    new URLSearchParams(
      "run=a&hide=a&tab=table&pin=loss&panel=loss+vs+epoch&logy=1&brush=%5B%22a%22%2C1%2C2%5D",
    ),
  );
  const layout = writeLayout(view);
  expect(layout).toBe("logy=1&pin=loss&panel=loss+vs+epoch");
  const other = readView(new URLSearchParams("run=b&pin=acc&group=params.lr&hide=lr%3D1"));
  expect(writeView({ ...other, ...withLayout(other, layout) }).toString()).toBe(`run=b&${layout}`);
});
