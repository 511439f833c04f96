import { cleanup, render, waitFor } from "@testing-library/preact";
import { afterEach, expect, it } from "vitest";
import { safeAddress } from "@/text/markdown";
import { LateMarkdown, prepareMarkdown, topHeading } from "./late_markdown";
import { Markdown } from "./markdown";
import { loadConverter } from "./maths";

afterEach(cleanup);

const html = (text: string) => render(<Markdown text={text} />).container;

it("shows headings below the title, lists, tables and code", () => {
  const shown = html("# Head\n\n- a\n- **b**\n\n| x | y |\n|---|--:|\n| 1 | 2 |\n\n```py\n<b>\n```");
  expect(shown.querySelector("h2")?.textContent).toBe("Head");
  expect([...shown.querySelectorAll("li")].map((each) => each.innerHTML)).toEqual([
    "a",
    "<strong>b</strong>",
  ]);
  expect(shown.querySelectorAll("td")[1]?.className).toContain("right");
  expect(shown.querySelector("pre")?.textContent).toBe("<b>\n");
});

it("shows hostile text as text", () => {
  const shown = html(
    [
      "<script>alert(1)</script> <img src=x onerror=alert(1)>",
      "[a](javascript:alert(1)) [b](data:text/html,x) [c](//evil.example/) [d](vbscript:x)",
      "![e](https://evil.example/x.png) ![f](data:image/svg+xml;base64,AAAA)",
      "<a href='https://x' onclick=alert(1)>g</a>",
    ].join("\n\n"),
  );
  expect(shown.querySelector("script, img, [onclick], [onerror], [style]")).toBeNull();
  expect([...shown.querySelectorAll("a")].map((each) => each.getAttribute("href"))).toEqual([
    "https://evil.example/x.png",
  ]);
});

it("leads only to the web, to mail and to this server", () => {
  const addresses = ["https://a.b", "mailto:a@b", "/runs/x", "#a", "runs?x=a:b"];
  expect(addresses.map(safeAddress)).toEqual(addresses);
  const refused = [
    "javascript:1",
    "JaVaScRiPt:1",
    "//a.b",
    "/\\a.b",
    "\\\\a.b",
    "data:text/html,x",
    "blob:x",
  ];
  expect(refused.filter((each) => safeAddress(each) !== null)).toEqual([]);
});

it("turns TeX into MathML without styles, and keeps money and broken TeX as text", async () => {
  const shown = html("$x^2$ costs $5 and $6\n\n$$\n\\frac{a}{b}\n$$\n\n$\\frac{$ $\\href{javascript:1}{y}$");
  await waitFor(() => expect(shown.querySelectorAll("math").length).toBeGreaterThan(1));
  expect(shown.querySelector("msup")?.textContent).toBe("x2");
  expect(shown.querySelector("math[display=block] mfrac")).not.toBeNull();
  expect(shown.textContent).toContain("costs $5 and $6");
  expect(shown.querySelector("[style], [href], [class*=tml]")).toBeNull();
});

it("draws a prepared text at once with its formulas", async () => {
  await prepareMarkdown(["$x^2$"]);
  const shown = render(<LateMarkdown text={"## Head\n\n$x^2$"} top={2} />).container;
  expect(shown.querySelector("msup")?.textContent).toBe("x2");
  expect(shown.querySelector("h2")?.textContent).toBe("Head");
});

it("takes the highest heading of all texts as the top", () => {
  expect(topHeading(["### a\n\n## b", "#no heading"])).toBe(2);
  expect(topHeading(["text"])).toBe(1);
});

it("bounds lengths of formulas, and moves none of their parts", async () => {
  const convert = await loadConverter();
  const { container } = render(
    <p>
      {convert("\\rule{99999em}{99999em} \\raise{99em}{X}", true)}
      {convert("x^2", true)}
    </p>,
  );
  const space = container.querySelector("mspace");
  expect([space?.getAttribute("width"), space?.getAttribute("height")]).toEqual(["20em", "20em"]);
  expect(container.querySelector("mpadded")?.getAttributeNames()).toEqual([]);
});

it("reads no markup from TeX", async () => {
  const convert = await loadConverter();
  const { container } = render(convert("\\text{<img src=x onerror=alert(1)>}", false) ?? <p />);
  expect(container.querySelector("img")).toBeNull();
  expect(container.textContent.replace(/\s/g, " ")).toBe("<img src=x onerror=alert(1)>");
});
