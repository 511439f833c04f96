import { Link } from "wouter-preact";
import { CurveSwatch } from "@/charts/curve_swatch";
import { Empty } from "@/parts/notices";
import { PhaseBadge } from "@/parts/phase";
import { compilePattern } from "@/text/pattern";
import { type Column, differencesFirst, formatValue, isDifferent } from "./columns";
import styles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { RowFilter } from "./row_filter";

const NONE: readonly Column[] = [];

/** Params, summary, environment and all else of the runs side by side, differences first. */
export function TableTab({
  runs,
  labels,
  columns,
  view,
  change,
  sections: only,
  more = NONE,
}: CompareParts & {
  /** The sections that are shown; left out: all. */
  sections?: readonly string[];
  /** Rows after those of the runs. */
  more?: readonly Column[];
}) {
  const matches = compilePattern(view.rows);
  const shown = [...columns, ...more].filter(
    (column) =>
      (only?.includes(column.section) ?? true) &&
      (matches?.(column.name) ?? true) &&
      (!view.isDifferencesOnly || isDifferent(column)),
  );
  const sections = only?.filter((section) => shown.some((column) => column.section === section)) ?? [
    ...new Set(shown.map((column) => column.section)),
  ];
  return (
    <>
      <div class={styles["bar"]} role="group" aria-label="rows">
        <RowFilter view={view} change={change} isInvalid={matches === null} />
      </div>
      <div class={styles["table"]} tabIndex={0} role="group" aria-label="values of the runs">
        <table>
          <thead>
            <tr>
              <td />
              {runs.map((run, place) => (
                <th key={run.id} scope="col">
                  <CurveSwatch colour={place} /> <Link href={`/runs/${run.id}`}>{labels[place]}</Link>
                  <br />
                  <PhaseBadge phase={run.phase} />
                </th>
              ))}
            </tr>
          </thead>
          {sections.map((section) => (
            <tbody key={section}>
              <tr class={styles["section"]}>
                <th scope="rowgroup" colSpan={runs.length + 1}>
                  {section}
                </th>
              </tr>
              {differencesFirst(shown.filter((column) => column.section === section)).map((column) => (
                <tr key={column.key} class={isDifferent(column) ? styles["different"] : undefined}>
                  <th scope="row" title={column.name}>
                    {column.name}
                  </th>
                  {column.values.map((value, place) => (
                    <td
                      key={runs[place]?.id}
                      title={formatValue(value)}
                      class={Object.is(value, column.values[0]) ? undefined : styles["other"]}
                    >
                      {formatValue(value)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </div>
      {shown.length === 0 && matches && <Empty title="No row is left: change the expression" />}
    </>
  );
}
