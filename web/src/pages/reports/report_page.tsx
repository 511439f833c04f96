import { useEffect, useMemo, useState } from "preact/hooks";
import { Link, useLocation, useParams, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { ApiError, isTemporary } from "@/api/client";
import { followEvents, isStreaming } from "@/api/events";
import { whyNoSubmit } from "@/api/rights";
import { session as login } from "@/api/session";
import { userStorage } from "@/api/user_storage";
import { Button } from "@/parts/button";
import buttonStyles from "@/parts/button.module.css";
import { prepareMarkdown, topHeading } from "@/parts/late_markdown";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { useShortcuts } from "@/shell/keys";
import { formatAge } from "@/text/format";
import { type Report, runsOf, textsOf } from "./blocks";
import { BlockView } from "./block_view";
import styles from "./report.module.css";
import { RemoveDialog } from "./remove_dialog";
import { ReportEditor } from "./report_editor";
import { ReportRunsContext, useReportRuns } from "./report_runs";
import { createReport, exportAddress, reportApi } from "./requests";
import { RevisionsDialog } from "./revisions_dialog";
import { ReportSession, type SaveStatus, type SessionState } from "./session";

const RETRY_MS = 2000;
const POLL_MS = 5000;
const STATUS: Readonly<Record<SaveStatus, string>> = {
  saved: "Saved",
  unsaved: "Not saved yet",
  saving: "Saving",
  away: "Not saved: the server does not answer",
  refused: "Not saved",
  conflict: "Not saved: changed by another editor",
  gone: "Not saved: the report was removed",
};

const ACCESS: Record<Report["access"], string> = {
  private: "private: other users see nothing of it",
  read: "other users may read it",
  write: "other users may change it",
};

/** A report by its address, `/reports/ID`; with `?edit=1` as fields. */
export function ReportPage() {
  const { id } = useParams<{ id: string }>();
  return <LoadedReport key={id} id={id} />;
}

function LoadedReport({ id }: { id: string }) {
  const [report, setReport] = useState<Report | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const load = () => {
      reportApi
        .get(id)
        .then(async (found) => {
          await prepareMarkdown(textsOf(found.blocks)).catch(() => undefined); // its parts load by themselves then
          if (!isOver) {
            setReport(found);
          }
        })
        .catch((failure: unknown) => {
          if (!isOver) {
            setError(failure);
            if (isTemporary(failure)) {
              timer = window.setTimeout(load, RETRY_MS);
            }
          }
        });
    };
    load();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [id]);
  if (report === null) {
    return error === null ? (
      <Loading />
    ) : error instanceof ApiError && error.status === 404 ? (
      <Empty title="There is no such report, or it is private">
        <p>
          See <Link href="/reports">all reports</Link>, or ask its author to share it.
        </p>
      </Empty>
    ) : (
      <ErrorNotice error={error} />
    );
  }
  return <OpenReport first={report} />;
}

/** Follows a report: its session, events of other editors, and the end of the page. */
function useReportSession(first: Report): [SessionState, ReportSession] {
  const [state, setState] = useState<SessionState | null>(null);
  const [session] = useState(() => new ReportSession(first, reportApi, userStorage, setState));
  useEffect(() => {
    const stop = followEvents((event) => {
      const isOwn = event.kind === "report" && event.subject === first.id;
      if (isOwn && event.change === "deleted") {
        session.onRemoved();
      } else if (isOwn || event.kind === "reset" || event.kind === "open") {
        void session.refresh(); // `open`: what changed before the stream began is not in it
      }
    });
    if (isStreaming.value) {
      void session.refresh(); // a change between the first read and now had no listener
    }
    const poll = window.setInterval(() => {
      if (!isStreaming.value && !document.hidden) {
        void session.refresh();
      }
    }, POLL_MS);
    return () => {
      stop();
      window.clearInterval(poll);
      session.close();
    };
  }, []);
  return [state ?? session.state, session];
}

function OpenReport({ first }: { first: Report }) {
  const [state, session] = useReportSession(first);
  const [, navigate] = useLocation();
  const [address, setAddress] = useSearchParams();
  const [dialog, setDialog] = useState<"revisions" | "remove" | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const { report, content, status } = state;
  const refusal = whyNoSubmit();
  const mayWrite = report.may_write && refusal === "";
  const isEditing = mayWrite && address.get("edit") === "1";
  const ids = useMemo(() => runsOf(content.blocks), [runsOf(content.blocks).join(" ")]);
  const runs = useReportRuns(ids);
  const top = useMemo(() => topHeading(textsOf(content.blocks)), [content.blocks]);
  const edit = (isOn: boolean) => setAddress(isOn ? { edit: "1" } : {}, { replace: true });
  const own = login.value?.user ?? "";
  useShortcuts([
    { keys: "e", text: "Edit the report", section: "Report", run: () => mayWrite && edit(true) },
    {
      keys: "Ctrl+s",
      text: "Save now",
      section: "Report",
      run: () => void session.save(),
    },
  ]);
  const copy = () => {
    createReport({ title: `${content.title} (copy)`.trim().slice(0, 200), blocks: content.blocks })
      .then((made) => {
        if (isEditing) {
          session.drop();
        }
        navigate(`/reports/${made.id}?edit=1`);
      })
      .catch(setFailure);
  };
  return (
    <ReportRunsContext.Provider value={runs}>
      <div class={`${page["page"]} ${styles["report"]}`}>
        <header class={styles["bar"]}>
          <Link href="/reports">Reports</Link>
          <span class={styles["quiet"]} role="status">
            {isEditing || status !== "saved"
              ? STATUS[status]
              : `changed ${formatAge(report.updated_at, serverNow())} by ${report.updated_by}`}
          </span>
          <div class={styles["actions"]}>
            {isEditing && (
              <Button kind="primary" onClick={() => edit(false)}>
                Done
              </Button>
            )}
            {!isEditing && report.may_write && (
              <Button kind="primary" disabled={!mayWrite} title={refusal} onClick={() => edit(true)}>
                Edit
              </Button>
            )}
            <Button disabled={refusal !== ""} title={refusal} onClick={copy}>
              Copy
            </Button>
            <Button onClick={() => setDialog("revisions")}>Revisions</Button>
            <a
              class={`${buttonStyles["button"]} ${buttonStyles["plain"]}`}
              href={exportAddress(report.id)}
              download={`report-${report.id}.html`}
            >
              Export
            </a>
            {report.user === own && (
              <Button
                kind="quiet"
                disabled={refusal !== ""}
                title={refusal}
                onClick={() => setDialog("remove")}
              >
                Remove
              </Button>
            )}
          </div>
        </header>
        {failure !== null && <ErrorNotice error={failure} />}
        <Trouble state={state} session={session} onCopy={copy} />
        {isEditing && <h1 class={styles["spoken"]}>Edit {content.title || "the report"}</h1>}
        {isEditing ? (
          <ReportEditor
            key={report.id}
            report={report}
            content={content}
            onChange={(part) => session.change(part)}
          />
        ) : (
          <article class={styles["article"]}>
            <h1>{content.title || "Untitled report"}</h1>
            <p class={styles["quiet"]}>
              By {report.user}
              {" · "}
              {ACCESS[report.access]}
              {mayWrite && report.user === own && (
                <Button kind="quiet" onClick={() => edit(true)}>
                  Share…
                </Button>
              )}
            </p>
            {content.blocks.map((block, place) => (
              <BlockView key={place} block={block} top={top} />
            ))}
            {content.blocks.length === 0 && (
              <Empty title="This report is empty">
                {report.may_write && <p>Choose Edit, and add a block of text, curves or a table of runs.</p>}
              </Empty>
            )}
          </article>
        )}
        {dialog === "revisions" && (
          <RevisionsDialog
            report={report}
            onRestore={(part) => session.change(part)}
            onClose={() => setDialog(null)}
          />
        )}
        {dialog === "remove" && (
          <RemoveDialog
            report={report}
            onClose={() => setDialog(null)}
            onDone={() => {
              session.drop();
              navigate("/reports");
            }}
          />
        )}
      </div>
    </ReportRunsContext.Provider>
  );
}

/** What stands between a change and the server, and what to do about it. */
function Trouble({
  state: { report, status, error, theirs },
  session,
  onCopy,
}: {
  state: SessionState;
  session: ReportSession;
  onCopy: () => void;
}) {
  if (status === "conflict" && theirs !== null) {
    return (
      <section class={styles["trouble"]} role="alert">
        <p>
          {theirs.revision < report.revision
            ? `The server has revision ${theirs.revision}, which is older than what this page shows: it was restored from a backup.`
            : `${theirs.updated_by} saved revision ${theirs.revision} while this page had changes of its own.`}{" "}
          Nothing is lost: choose what stays.
        </p>
        <Button onClick={() => session.takeTheirs()}>Show theirs, drop mine</Button>
        <Button onClick={() => void session.keepMine()}>Keep mine (theirs stays in Revisions)</Button>
        <Button onClick={onCopy}>Save mine as a new report</Button>
      </section>
    );
  }
  if (status === "gone") {
    return (
      <section class={styles["trouble"]} role="alert">
        <p>The report was removed. What this page shows is all that is left of it.</p>
        <Button onClick={onCopy}>Save it as a new report</Button>
      </section>
    );
  }
  if (status === "refused") {
    return (
      <section class={styles["trouble"]} role="alert">
        <p>{error instanceof Error ? error.message : "The server refused the change"}</p>
        {error instanceof ApiError && error.hints.map((hint) => <p key={hint}>{hint}</p>)}
      </section>
    );
  }
  return status === "away" ? (
    <p class={page["stale"]} role="status">
      The server does not answer. The changes are kept in this browser, and saved once it does.
    </p>
  ) : null;
}
