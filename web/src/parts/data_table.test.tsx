import { cleanup, fireEvent, render, screen, within } from "@testing-library/preact";
import { afterEach, describe, expect, it } from "vitest";
import { DataTable, type DataColumn } from "./data_table";

interface Row {
  name: string;
  size: number | null;
}

const COLUMNS: DataColumn<Row>[] = [
  { key: "name", title: "Name", value: (row) => row.name },
  {
    key: "size",
    title: "Size",
    value: (row) => row.size,
    cell: (row) => `${row.size ?? "no"} B`,
    isNumber: true,
  },
  { key: "more", title: "More", cell: () => "…" },
];
const ROWS: Row[] = [
  { name: "b10", size: 5 },
  { name: "b2", size: null },
  { name: "a", size: 70 },
];

function names(): (string | null | undefined)[] {
  return screen
    .getAllByRole("row")
    .slice(1)
    .map((row) => within(row).getAllByRole("cell")[0]?.textContent);
}

describe("DataTable", () => {
  afterEach(cleanup);

  it("sorts by a click: up, down, and back to the given order", () => {
    render(<DataTable label="files" columns={COLUMNS} rows={ROWS} rowKey={(row) => row.name} />);
    expect(names()).toEqual(["b10", "b2", "a"]);
    fireEvent.click(screen.getByRole("button", { name: "Name" }));
    expect(names()).toEqual(["a", "b2", "b10"]);
    fireEvent.click(screen.getByRole("button", { name: /Name/ }));
    expect(names()).toEqual(["b10", "b2", "a"]);
    fireEvent.click(screen.getByRole("button", { name: /Name/ }));
    expect(names()).toEqual(["b10", "b2", "a"]);
  });

  it("puts rows without a value last in both directions", () => {
    const { rerender } = render(
      <DataTable
        label="files"
        columns={COLUMNS}
        rows={ROWS}
        rowKey={(row) => row.name}
        sort="size"
        onSort={() => undefined}
      />,
    );
    expect(names()).toEqual(["b10", "a", "b2"]);
    rerender(
      <DataTable
        label="files"
        columns={COLUMNS}
        rows={ROWS}
        rowKey={(row) => row.name}
        sort="-size"
        onSort={() => undefined}
      />,
    );
    expect(names()).toEqual(["a", "b10", "b2"]);
    expect(screen.getByRole("columnheader", { name: /Size/ }).getAttribute("aria-sort")).toBe("descending");
  });

  it("has no button on a column without a value", () => {
    render(<DataTable label="files" columns={COLUMNS} rows={ROWS} rowKey={(row) => row.name} />);
    expect(screen.queryByRole("button", { name: "More" })).toBeNull();
  });

  it("keeps most rows of a long table out of the document", () => {
    const many = Array.from({ length: 5000 }, (_, index) => ({ name: `row ${index}`, size: index }));
    render(<DataTable label="files" columns={COLUMNS} rows={many} rowKey={(row) => row.name} />);
    expect(screen.getAllByRole("row").length).toBeLessThan(200);
    expect(screen.getByRole("table").getAttribute("aria-rowcount")).toBe("5001");
  });

  it("settles after it is shown again with other columns", async () => {
    let cells = 0;
    const table = () => (
      <DataTable
        label="files"
        columns={COLUMNS.map((column) => ({ ...column, cell: () => (cells += 1) }))}
        rows={ROWS}
        rowKey={(row) => row.name}
      />
    );
    const { rerender } = render(table());
    rerender(table());
    rerender(table());
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(cells).toBeLessThan(10 * ROWS.length * COLUMNS.length);
  });
});
