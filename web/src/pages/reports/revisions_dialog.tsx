import { useState } from "preact/hooks";
import { serverNow } from "@/api/answers";
import { usePolled } from "@/api/polling";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { ErrorNotice, Loading } from "@/parts/notices";
import { formatAge } from "@/text/format";
import { type Content, contentOf, type Report } from "./blocks";
import styles from "./report.module.css";
import { getRevision, listRevisions } from "./requests";

/** The states of a report that the server keeps. An earlier one comes back as a change, so nothing is lost. */
export function RevisionsDialog({
  report,
  onRestore,
  onClose,
}: {
  report: Report;
  onRestore: (part: Partial<Content>) => void;
  onClose: () => void;
}) {
  const { data: revisions, error } = usePolled(
    `revisions ${report.id} ${report.revision}`,
    () => listRevisions(report.id),
    () => null,
  );
  const [failure, setFailure] = useState<unknown>(null);
  const restore = (revision: number) => {
    getRevision(report.id, revision)
      .then((found) => {
        const { title, blocks } = contentOf(found);
        onRestore({ title, blocks });
        onClose();
      })
      .catch(setFailure);
  };
  return (
    <Dialog title="Revisions" isOpen isWide onClose={onClose}>
      {revisions === null ? (
        error === null ? (
          <Loading rows={3} />
        ) : (
          <ErrorNotice error={error} />
        )
      ) : (
        <ul class={styles["revisions"]}>
          {revisions.map((each) => (
            <li key={each.revision}>
              <span>
                Revision {each.revision}: {each.title || "untitled"}
              </span>
              <small>
                {each.updated_by}, {formatAge(each.updated_at, serverNow())}
              </small>
              {each.revision === report.revision ? (
                <small>now</small>
              ) : (
                report.may_write && (
                  <Button
                    aria-label={`Restore revision ${each.revision}`}
                    onClick={() => restore(each.revision)}
                  >
                    Restore
                  </Button>
                )
              )}
            </li>
          ))}
        </ul>
      )}
      {failure !== null && <ErrorNotice error={failure} />}
      <DialogButtons>
        <Button onClick={onClose}>Close</Button>
      </DialogButtons>
    </Dialog>
  );
}
