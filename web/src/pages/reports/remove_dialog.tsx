import { useState } from "preact/hooks";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { ErrorNotice } from "@/parts/notices";
import { removeReport, type ReportSummary } from "./requests";

export function RemoveDialog({
  report,
  onClose,
  onDone,
}: {
  report: ReportSummary;
  onClose: () => void;
  onDone: () => void;
}) {
  const [error, setError] = useState<unknown>(null);
  return (
    <Dialog title="Remove this report?" isOpen onClose={onClose}>
      <p>
        {report.title || "The report"} is removed with its earlier revisions, for all users. Its runs stay.
      </p>
      {error !== null && <ErrorNotice error={error} />}
      <DialogButtons>
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="danger" onClick={() => void removeReport(report.id).then(onDone).catch(setError)}>
          Remove
        </Button>
      </DialogButtons>
    </Dialog>
  );
}
