import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, expect, test } from "vitest";
import { TablePreview } from "./table_preview";

afterEach(cleanup);

const names = () => screen.getAllByRole("row").map((row) => row.textContent);

test("columns of numbers in text sort by size, and empty cells are last", () => {
  render(
    <TablePreview
      label="results"
      header={["name", "score"]}
      rows={[
        ["a", "10"],
        ["b", ""],
        ["c", "9"],
      ]}
    />,
  );
  fireEvent.click(screen.getByRole("button", { name: /score/ }));
  expect(names().slice(1)).toEqual(["c9", "a10", "b"]);
});

test("rows are found by a part of any cell, and markup stays text", () => {
  const rows = Array.from({ length: 30 }, (_, i) => [`<b>row ${i}</b>`, i, null, { deep: i }]);
  const { container } = render(<TablePreview label="hostile" header={["a", "b"]} rows={rows} note="more" />);
  fireEvent.input(screen.getByRole("searchbox"), { target: { value: "ROW 29" } });
  expect(screen.getByRole("status").textContent).toBe("1 of 30 rows");
  expect(names()[1]).toBe("<b>row 29</b>29");
  expect(container.querySelector("b")).toBeNull();
  expect(screen.getByText("more")).toBeTruthy();
});
