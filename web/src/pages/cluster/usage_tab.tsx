import { useMemo } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { saveFile } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import fieldStyles from "@/parts/field.module.css";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import styles from "./cluster.module.css";
import { dayKey } from "./month";
import { GROUPS, usageCsv, type Group, type Usage } from "./usage_csv";

const HOUR_S = 3600;
const GIB = 2 ** 30;
const PERIODS = ["day", "week", "month"] as const;
const TITLES: Record<Group, string> = { user: "User", queue: "Queue", project: "Project" };
const DEFAULT_DAYS = 30;

/** Midnight of a day in this machine's zone; null where the text is none. */
function readDay(text: string | null): Date | null {
  const match = /^(\d{4})-(\d{2})-(\d{2})$/.exec(text ?? "");
  return match ? new Date(Number(match[1]), Number(match[2]) - 1, Number(match[3])) : null;
}

function daysLater(date: Date, days: number): Date {
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + days);
}

/** The usage report: GPU-hours by user, queue or project, in all or per day, week or month; and its CSV. */
export function UsageTab() {
  const [address, setAddress] = useSearchParams();
  const today = dayKey(new Date());
  const since = address.get("from") ?? dayKey(daysLater(new Date(), -DEFAULT_DAYS));
  const until = address.get("to") ?? today;
  const chosen = (address.get("by") ?? "user").split(",");
  const groups = GROUPS.filter((group) => chosen.includes(group));
  const per = PERIODS.find((each) => each === address.get("per")) ?? "";
  const set = (part: Record<string, string>) => {
    const words = { from: since, to: until, by: groups.join(","), per, ...part };
    setAddress(
      {
        tab: "usage",
        from: words.from,
        to: words.to,
        by: words.by || "user",
        ...(words.per === "" ? {} : { per: words.per }),
      },
      { replace: true },
    );
  };
  const [begin, end] = [readDay(since), readDay(until)];
  const by = groups.length > 0 ? groups : (["user"] as const);
  const { data: found, error } = usePolled(
    `usage ${since} ${until} ${by.join()} ${per}`,
    () =>
      data(
        api.GET("/api/v1/usage", {
          params: {
            query: {
              by: by.join(","),
              ...(begin === null ? {} : { since: begin.toISOString() }),
              ...(end === null ? {} : { until: daysLater(end, 1).toISOString() }),
              ...(per === "" ? {} : { per }),
            },
          },
        }),
      ),
    () => null,
  );
  const rows = found?.usage ?? [];
  const columns = useMemo(() => toColumns(by, per !== "", rows), [found]);
  const download = () =>
    saveFile(`usage-${since}-${until}.csv`, new TextEncoder().encode(usageCsv(rows, by)));
  return (
    <>
      <div class={pageStyles["bar"]}>
        <label>
          From
          <input
            class={fieldStyles["input"]}
            type="date"
            value={since}
            max={until}
            onChange={(event) => set({ from: event.currentTarget.value })}
          />
        </label>
        <label>
          To
          <input
            class={fieldStyles["input"]}
            type="date"
            value={until}
            min={since}
            onChange={(event) => set({ to: event.currentTarget.value })}
          />
        </label>
        <fieldset class={styles["choices"]}>
          <legend>By</legend>
          {GROUPS.map((group) => (
            <label key={group}>
              <input
                type="checkbox"
                checked={by.some((each) => each === group)}
                onChange={(event) =>
                  set({
                    by: GROUPS.filter((each) =>
                      each === group ? event.currentTarget.checked : by.some((own) => own === each),
                    ).join(","),
                  })
                }
              />
              {group}
            </label>
          ))}
        </fieldset>
        <label>
          Per
          <select
            class={fieldStyles["input"]}
            value={per}
            onChange={(event) => set({ per: event.currentTarget.value })}
          >
            <option value="">whole span</option>
            {PERIODS.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
        </label>
        <Button onClick={download} disabled={rows.length === 0}>
          Download CSV
        </Button>
      </div>
      {!found && (error === null ? <Loading /> : <ErrorNotice error={error} />)}
      {found && rows.length === 0 && (
        <Empty title="Nothing ran in this time" command="hop usage --from 90d">
          <p>Choose another span, or start a run.</p>
        </Empty>
      )}
      {rows.length > 0 && (
        <>
          <DataTable
            label="usage"
            columns={columns}
            rows={rows}
            rowKey={(row) => [row.since, row.user, row.queue, row.project].join("\n")}
          />
          <p class={pageStyles["quiet"]}>
            From placement to end, removed runs too; live runs count until now. Days, weeks and months are in
            UTC.
            {` Together ${hours(rows.reduce((sum, row) => sum + row.gpu_s, 0))} GPU-hours and ${hours(rows.reduce((sum, row) => sum + row.cpu_s, 0))} CPU-hours.`}
          </p>
        </>
      )}
    </>
  );
}

function hours(seconds: number): string {
  return (seconds / HOUR_S).toFixed(2);
}

function toColumns(
  groups: readonly Group[],
  hasPeriods: boolean,
  rows: readonly Usage[],
): DataColumn<Usage>[] {
  const hasGpus = rows.some((row) => row.gpu_s > 0);
  const largest = Math.max(...rows.map((row) => (hasGpus ? row.gpu_s : row.cpu_s)), 1e-9);
  return [
    ...(hasPeriods ? [{ key: "since", title: "From", value: (row: Usage) => row.since.slice(0, 10) }] : []),
    ...groups.map((group) => ({
      key: group,
      title: TITLES[group],
      value: (row: Usage) => row[group],
    })),
    {
      key: "bar",
      title: hasGpus ? "Part of the largest, GPU-hours" : "Part of the largest, CPU-hours",
      cell: (row: Usage) => (
        <span class={styles["usageBar"]} aria-hidden="true">
          <span style={{ width: `${((hasGpus ? row.gpu_s : row.cpu_s) / largest) * 100}%` }} />
        </span>
      ),
    },
    {
      key: "gpu",
      title: "GPU-hours",
      value: (row) => row.gpu_s,
      cell: (row) => hours(row.gpu_s),
      isNumber: true,
    },
    {
      key: "cpu",
      title: "CPU-hours",
      value: (row) => row.cpu_s,
      cell: (row) => hours(row.cpu_s),
      isNumber: true,
    },
    {
      key: "memory",
      title: "GiB-hours",
      value: (row) => row.memory_byte_s,
      cell: (row) => hours(row.memory_byte_s / GIB),
      isNumber: true,
    },
    { key: "attempts", title: "Attempts", value: (row) => row.attempts, isNumber: true },
  ];
}
