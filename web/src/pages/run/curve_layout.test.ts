import { expect, test } from "vitest";
import { applyLayout, layoutOf } from "./curve_layout";

test("a layout leaves the tab and the file of the address alone", () => {
  const search = new URLSearchParams(
    "tab=curves&pin=loss&x=step&smoothing=0.5&pin=loss&panel=loss+vs+lr&file=a",
  );
  const layout = layoutOf(search);
  expect(layout).toBe("smoothing=0.5&pin=loss&panel=loss+vs+lr");
  expect(applyLayout(new URLSearchParams("tab=curves&log=y&pin=acc"), layout).toString()).toBe(
    `tab=curves&${layout}`,
  );
  expect(layoutOf(new URLSearchParams("tab=curves"))).toBe("");
});
