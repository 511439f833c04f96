import { useEffect, useMemo, useState } from "preact/hooks";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { serverNow } from "@/api/answers";
import { followEvents, isStreaming } from "@/api/events";
import { usePolled } from "@/api/polling";
import { whyNoSubmit } from "@/api/rights";
import { session } from "@/api/session";
import { Button } from "@/parts/button";
import { DataTable } from "@/parts/data_table";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading, StaleNotice } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { useShortcuts } from "@/shell/keys";
import { formatAge } from "@/text/format";
import { createReport, listReports, type ReportSummary } from "./requests";

const POLL_MS = 5000;
const SETTLE_MS = 300;
const ACCESS: Readonly<Record<ReportSummary["access"], string>> = {
  private: "private",
  read: "shared",
  write: "shared, others may change it",
};

/** The reports that the user may read: `/reports?search=TEXT`. */
export function ReportsPage() {
  const [address, setAddress] = useSearchParams();
  const [, navigate] = useLocation();
  const search = address.get("search") ?? "";
  const [more, setMore] = useState<{ key: string; reports: readonly ReportSummary[]; next: string | null }>();
  const [failure, setFailure] = useState<unknown>(null);
  const {
    data: first,
    error,
    reload,
  } = usePolled(
    `reports ${search}`,
    () => listReports(search, null),
    () => (isStreaming.value ? null : POLL_MS),
  );
  useEffect(() => {
    let timer = 0;
    const stop = followEvents((event) => {
      if (["open", "reset", "report"].includes(event.kind)) {
        window.clearTimeout(timer);
        timer = window.setTimeout(reload, SETTLE_MS);
      }
    });
    return () => {
      stop();
      window.clearTimeout(timer);
    };
  }, [reload]);
  const create = () => {
    createReport({ title: "", access: "private" })
      .then((made) => navigate(`/reports/${made.id}?edit=1`))
      .catch(setFailure);
  };
  const refusal = whyNoSubmit();
  useShortcuts([
    { keys: "n", text: "New report", section: "Reports", run: () => refusal === "" && create() },
  ]);
  const older = more?.key === search ? more : undefined;
  const reports = useMemo(() => {
    const all = [...(first?.reports ?? []), ...(older?.reports ?? [])];
    return [...new Map(all.map((report) => [report.id, report])).values()];
  }, [first, older]);
  const next = older ? older.next : (first?.next ?? null);
  const now = serverNow();
  return (
    <div class={page["page"]}>
      <header class={page["head"]}>
        <h1>Reports</h1>
        <Button kind="primary" disabled={refusal !== ""} title={refusal} onClick={create}>
          New report
        </Button>
      </header>
      <div class={page["bar"]}>
        <label>
          Search
          <input
            type="search"
            class={fieldStyles["input"]}
            placeholder="a part of the title"
            value={search}
            maxLength={200}
            onInput={(event) => {
              const text = event.currentTarget.value;
              setAddress(text === "" ? {} : { search: text }, { replace: true });
            }}
          />
        </label>
      </div>
      {failure !== null && <ErrorNotice error={failure} />}
      {first !== null && <StaleNotice error={error} />}
      {first === null ? (
        error === null ? (
          <Loading />
        ) : (
          <ErrorNotice error={error} />
        )
      ) : reports.length === 0 ? (
        search !== "" ? (
          <Empty title="No title has this text" />
        ) : (
          <Empty title="No reports yet">
            <p>
              A report shows text, curves, tables and media of chosen runs on one page. Choose New report, or
              Add to report on a comparison of runs.
            </p>
          </Empty>
        )
      ) : (
        <DataTable
          label="reports"
          rows={reports}
          rowKey={(report) => report.id}
          columns={[
            {
              key: "title",
              title: "Title",
              value: (report) => report.title,
              cell: (report) => (
                <Link href={`/reports/${report.id}`}>{report.title || "Untitled report"}</Link>
              ),
            },
            {
              key: "user",
              title: "Author",
              value: (report) => report.user,
              cell: (report) => (report.user === session.value?.user ? `${report.user} (you)` : report.user),
            },
            { key: "access", title: "Access", value: (report) => ACCESS[report.access] },
            {
              key: "updated",
              title: "Changed",
              value: (report) => report.updated_at,
              cell: (report) => `${formatAge(report.updated_at, now)} by ${report.updated_by}`,
            },
          ]}
        />
      )}
      {next !== null && (
        <div class={page["bar"]}>
          <Button
            onClick={() => {
              listReports(search, next)
                .then((found) =>
                  setMore({
                    key: search,
                    reports: [...(older?.reports ?? []), ...found.reports],
                    next: found.next,
                  }),
                )
                .catch(setFailure);
            }}
          >
            Show more
          </Button>
        </div>
      )}
    </div>
  );
}
