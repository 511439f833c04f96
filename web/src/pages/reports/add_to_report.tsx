import { useEffect, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { whyNoSubmit } from "@/api/rights";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice } from "@/parts/notices";
import type { Block } from "./blocks";
import { appendBlock, createReport, listReports, type ReportSummary } from "./requests";

const NEW = "";

/** A button that puts what a page shows into a new report, or at the end of one. */
export function AddToReport({ block }: { block: () => Block }) {
  const [isOpen, setOpen] = useState(false);
  const refusal = whyNoSubmit();
  return (
    <>
      <Button disabled={refusal !== ""} title={refusal} onClick={() => setOpen(true)}>
        Add to report
      </Button>
      {isOpen && <AddDialog block={block} onClose={() => setOpen(false)} />}
    </>
  );
}

function AddDialog({ block, onClose }: { block: () => Block; onClose: () => void }) {
  const [, navigate] = useLocation();
  const [reports, setReports] = useState<readonly ReportSummary[]>([]);
  const [chosen, setChosen] = useState(NEW);
  const [title, setTitle] = useState("");
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    listReports("", null)
      .then((page) => setReports(page.reports.filter((report) => report.may_write)))
      .catch(setError);
  }, []);
  const add = async () => {
    if (chosen === NEW) {
      return (await createReport({ title: title.trim(), blocks: [block()] })).id;
    }
    await appendBlock(chosen, block());
    return chosen;
  };
  return (
    <Dialog title="Add to report" isOpen onClose={onClose}>
      <form
        style={{ display: "grid", gap: "var(--space-4)" }}
        onSubmit={(event) => {
          event.preventDefault();
          add()
            .then((id) => navigate(`/reports/${id}?edit=1`))
            .catch(setError);
        }}
      >
        <label class={fieldStyles["label"]}>
          Report
          <select
            class={fieldStyles["input"]}
            value={chosen}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            <option value={NEW}>a new report</option>
            {reports.map((report) => (
              <option key={report.id} value={report.id}>
                {report.title || "Untitled report"}
              </option>
            ))}
          </select>
        </label>
        {chosen === NEW && (
          <label class={fieldStyles["label"]}>
            Title
            <input
              class={fieldStyles["input"]}
              value={title}
              maxLength={200}
              placeholder="What the report is about"
              onInput={(event) => setTitle(event.currentTarget.value)}
            />
          </label>
        )}
        {error !== null && <ErrorNotice error={error} />}
        <DialogButtons>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit">
            Add
          </Button>
        </DialogButtons>
      </form>
    </Dialog>
  );
}
