import { formatNumber } from "@/text/format";
import { formatX, type XKind } from "./axis_format";
import styles from "./curve_chart.module.css";
import type { PlotCursor } from "./curve_plot";
import { byValue, type NearPoint } from "./curve_series";
import { CurveSwatch } from "./curve_swatch";

const MAX_ROWS = 10;

/** Returns the points that a tooltip lists: those nearest to the pointer, the highest first. */
export function tooltipPoints(cursor: PlotCursor): NearPoint[] {
  const sorted = [...cursor.points].sort(byValue);
  if (sorted.length <= MAX_ROWS) {
    return sorted;
  }
  const place = cursor.nearest ? sorted.indexOf(cursor.nearest) : 0;
  const first = Math.min(Math.max(0, place - MAX_ROWS / 2), sorted.length - MAX_ROWS);
  return sorted.slice(first, first + MAX_ROWS);
}

/** The values at the cursor. */
export function CurveTooltip({
  cursor,
  xKind,
  xLabel,
  width,
}: {
  cursor: PlotCursor;
  xKind: XKind;
  xLabel: string;
  width: number;
}) {
  const points = tooltipPoints(cursor);
  const x = cursor.nearest?.x ?? points[0]?.x ?? cursor.x;
  const others = cursor.points.length - points.length;
  const isLeft = cursor.left > width / 2;
  return (
    <div
      class={styles["tooltip"]}
      style={{
        top: `${Math.max(0, cursor.top - 10)}px`,
        ...(isLeft ? { right: `${width - cursor.left + 14}px` } : { left: `${cursor.left + 14}px` }),
      }}
    >
      <p>
        {xLabel} {formatX(xKind, x)}
      </p>
      <table>
        <tbody>
          {points.map((point) => (
            <tr key={point.series.key} class={point === cursor.nearest ? styles["nearest"] : undefined}>
              <td>
                <CurveSwatch colour={point.series.colour} />
              </td>
              <th scope="row">{point.series.label}</th>
              <td>{formatNumber(point.y)}</td>
              <td>{point.x === x ? "" : `at ${formatX(xKind, point.x)}`}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {others > 0 && <p>and {others} more</p>}
      {cursor.marks.map(({ series, mark }, index) => (
        <p key={index}>
          <CurveSwatch colour={series.colour} /> {mark.label}
        </p>
      ))}
    </div>
  );
}
