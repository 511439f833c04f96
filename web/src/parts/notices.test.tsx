import { cleanup, render, screen } from "@testing-library/preact";
import { afterEach, describe, expect, it } from "vitest";
import { ApiError } from "@/api/client";
import { Empty, ErrorNotice, StaleNotice } from "./notices";

const HOSTILE = "<img src=x onerror=alert(1)>";

afterEach(cleanup);

describe("notices", () => {
  it("shows an error of the server with its hints, as text", () => {
    render(<ErrorNotice error={new ApiError(404, "not_found", HOSTILE, ["try `hop ps`"])} />);
    const notice = screen.getByRole("alert");
    expect(notice.textContent).toContain(HOSTILE);
    expect(notice.textContent).toContain("try `hop ps`");
    expect(notice.querySelector("img")).toBeNull();
  });

  it("shows what to type where nothing is there", () => {
    render(<Empty title="No runs yet" command="hop run main.py" />);
    expect(screen.getByRole("heading").textContent).toBe("No runs yet");
    expect(screen.getByText("hop run main.py").tagName).toBe("PRE");
  });
});

describe("StaleNotice", () => {
  it("distinguishes a server that is away from a refusal", () => {
    const { rerender } = render(<StaleNotice error={new ApiError(0, "server_unavailable", "refused")} />);
    expect(screen.getByRole("alert").textContent).toContain("The server does not answer");
    rerender(<StaleNotice error={new ApiError(404, "not_found", "there is no run 7")} />);
    expect(screen.getByRole("alert").textContent).toBe("there is no run 7");
    rerender(<StaleNotice error={null} />);
    expect(screen.queryByRole("alert")).toBeNull();
  });
});
