import { cleanup, render, screen } from "@testing-library/preact";
import { afterEach, describe, expect, it } from "vitest";
import { ApiError } from "@/api/client";
import { Empty, ErrorNotice } from "./notices";

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
