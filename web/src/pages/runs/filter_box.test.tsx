import { cleanup, fireEvent, render, waitFor } from "@testing-library/preact";
import { afterEach, expect, test, vi } from "vitest";
import { FilterBox } from "./filter_box";

afterEach(cleanup);

test("letters that are typed while a filter is applied are kept", async () => {
  const onChange = vi.fn<(value: string) => void>();
  const box = (value: string) => <FilterBox value={value} error={null} names={[]} onChange={onChange} />;
  const page = render(box(""));
  const input = page.getByRole("combobox") as HTMLInputElement;
  fireEvent.input(input, { target: { value: "v" } });
  await waitFor(() => expect(onChange).toHaveBeenCalledWith("v"));
  fireEvent.input(input, { target: { value: "va" } });
  page.rerender(box("v"));
  await waitFor(() => expect(onChange).toHaveBeenLastCalledWith("va"));
  expect(input.value).toBe("va");

  page.rerender(box("va"));
  page.rerender(box("loss"));
  await waitFor(() => expect(input.value).toBe("loss"));
});
