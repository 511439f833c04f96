import { expect, test } from "vitest";
import { DEFAULT_VIEW, isQuery, nextSort, parseView, toQuery, viewSearch, type View } from "./view";

const VIEW: View = {
  filter: "val_acc > 0.9 and tags.team = 'a&b'",
  sort: "-metrics.val_acc",
  group: "",
  columns: ["name", "params.lr,x", "metrics.val loss"],
  shown: "archived",
};

test("a view survives the address", () => {
  expect(parseView(new URLSearchParams(viewSearch(VIEW).toString()))).toEqual(VIEW);
});

test("the usual view has an empty address, and unknown values are dropped", () => {
  expect(viewSearch(DEFAULT_VIEW).toString()).toBe("");
  expect(parseView(new URLSearchParams("show=everything&column=&column=a&column=a"))).toEqual({
    ...DEFAULT_VIEW,
    columns: ["a"],
  });
});

test.each([
  ["resnet 50", false],
  ["adam or sgd", false],
  ["lr=0.1", true],
  ["phase in (failed, cancelled)", true],
  ["params.lr", true],
])("%s is a query: %s", (filter, expected) => {
  expect(isQuery(filter)).toBe(expected);
});

test("words and queries become different parameters, and a group decides the order", () => {
  expect(toQuery({ ...DEFAULT_VIEW, filter: " resnet " })).toEqual({ trials: 0, text: "resnet" });
  expect(toQuery({ ...VIEW, group: "params.weight decay" })).toEqual({
    trials: 0,
    where: VIEW.filter,
    sort: "params.`weight decay`",
    archived: "only",
  });
});

test("the head of a column turns the order", () => {
  expect(nextSort("", "lr")).toBe("-lr");
  expect(nextSort("-lr", "lr")).toBe("lr");
  expect(nextSort("lr", "lr")).toBe("");
  expect(nextSort("-acc", "lr")).toBe("-lr");
});
