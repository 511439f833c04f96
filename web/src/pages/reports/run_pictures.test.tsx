import { cleanup, render } from "@testing-library/preact";
import { afterEach, expect, it } from "vitest";
import type { Run } from "@/api/runs";
import { ParallelPicture } from "./run_pictures";

afterEach(cleanup);

const run = (id: string, lr: number) =>
  ({
    id,
    name: `ada/digits/${id}`,
    phase: "succeeded",
    spec: { label: "", params: { lr }, roles: [], tags: {} },
    params: {},
    latest: {},
    summary: {},
  }) as unknown as Run;

it("names the run of each line, and the columns that it cannot draw", () => {
  const page = render(
    <ParallelPicture runs={[run("1", 0.1), run("2", 0.2)]} columns={["params.lr", "phase", "label"]} />,
  );
  expect(page.getAllByRole("listitem").map((each) => each.textContent.trim())).toEqual([
    "ada/digits/1",
    "ada/digits/2",
  ]);
  expect(page.container.querySelectorAll("path").length).toBe(2);
  page.getByText("Not drawn, since they hold no numbers: Phase, Label");
});
