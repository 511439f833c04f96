import { cleanup, render, screen } from "@testing-library/preact";
import { afterEach, expect, it } from "vitest";
import type { Schemas } from "@/api/client";
import { AnswerPanel } from "./answer_panel";
import type { Answer } from "./use_answer";

const STARTS = { starts: "now", sentence: "starts now on box" } as Schemas["PreviewOut"];
const ANSWER: Answer = { spec: null, composed: null, preview: STARTS, problem: null, isCodeLost: false };

function show(part: Partial<Parameters<typeof AnswerPanel>[0]>) {
  render(
    <AnswerPanel
      answer={ANSWER}
      isBusy={false}
      isSending={false}
      isStudy={false}
      isFormEmpty={false}
      onStart={() => undefined}
      {...part}
    />,
  );
  const button: HTMLButtonElement = screen.getByRole("button");
  return {
    verdict: screen.getByRole("status").textContent,
    button: button.textContent,
    off: button.disabled,
  };
}

afterEach(cleanup);

it("an answer says when the run or the first trial starts", () => {
  expect(show({})).toEqual({ verdict: "Starts now on box", button: "Start the run", off: false });
  cleanup();
  expect(show({ isStudy: true })).toEqual({
    verdict: "The first trial starts now on box",
    button: "Start the study",
    off: false,
  });
});

it("a pending answer says so, and nothing can start meanwhile", () => {
  expect(show({ isBusy: true })).toEqual({ verdict: "Checking…", button: "Start the run", off: true });
});

it("an empty form is not checked", () => {
  const { verdict } = show({ isBusy: true, isFormEmpty: true, answer: { ...ANSWER, preview: null } });
  expect(verdict).toContain("Choose the code and a command");
});

it("a study shows its limits and its first trials", () => {
  const study = {
    ...{ name: "search", metric: "val_acc", goal: "max", searcher: "asha", parallel: "trials" },
    ...{ trials: 6, concurrent: 4, budget: 9, budget_unit: "epochs" },
    first_trials: [{ trial: "0", params: { lr: 0.01, shape: "<b>" } as never, budget: 1 }],
  };
  show({ isStudy: true, answer: { ...ANSWER, composed: { study } } });
  expect(screen.getByLabelText("the study").textContent).toContain("of at most 6 trials, 4 at a time");
  expect(screen.getByRole("listitem").textContent).toBe("lr=0.01  shape=<b> · 1 epoch first");
});
