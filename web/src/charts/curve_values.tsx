import { useState } from "preact/hooks";
import { formatCount, formatNumber } from "@/text/format";
import { formatX, type XKind } from "./axis_format";
import styles from "./curve_chart.module.css";
import { type CurveSeries, valueRows } from "./curve_series";

const MAX_ROWS = 50;
const MAX_COLUMNS = 20;

/** The values of a chart as a table, for screen readers and for exact numbers. */
export function CurveValues({
  series,
  xKind,
  xLabel,
}: {
  series: readonly CurveSeries[];
  xKind: XKind;
  xLabel: string;
}) {
  const [isOpen, setOpen] = useState(false);
  const columns = series.slice(0, MAX_COLUMNS);
  const marks = series.flatMap((each) => (each.marks ?? []).map((mark) => ({ ...mark, of: each.label })));
  return (
    <details class={styles["values"]} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Values</summary>
      {isOpen && (
        <div class={styles["scroll"]} tabIndex={0} role="group" aria-label="values">
          <table>
            <thead>
              <tr>
                <th scope="col">{xLabel}</th>
                {columns.map((each) => (
                  <th key={each.key} scope="col">
                    {each.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {valueRows(columns, MAX_ROWS).map((row) => (
                <tr key={row.x}>
                  <th scope="row">{formatX(xKind, row.x)}</th>
                  {row.values.map((value, index) => (
                    <td key={index}>{value === null ? "" : formatNumber(value)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
          {series.length > columns.length && (
            <p>and {formatCount(series.length - columns.length, "more curve")}</p>
          )}
          {marks.map((mark, index) => (
            <p key={index}>
              {xLabel} {formatX(xKind, mark.x)}: {mark.label} ({mark.of})
            </p>
          ))}
        </div>
      )}
    </details>
  );
}
