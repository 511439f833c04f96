import type { Signal } from "@preact/signals";
import { memo } from "preact/compat";
import styles from "./curve_chart.module.css";
import type { CurveSeries } from "./curve_series";
import { CurveSwatch } from "./curve_swatch";

/** Returns the hidden keys after a click: hides or shows one; `isAlone` shows it alone, or all again. */
export function toggleHidden(
  hidden: ReadonlySet<string>,
  keys: readonly string[],
  key: string,
  isAlone: boolean,
): ReadonlySet<string> {
  if (isAlone) {
    const others = keys.filter((each) => each !== key);
    const isShownAlone = !hidden.has(key) && others.every((each) => hidden.has(each));
    return isShownAlone ? new Set() : new Set(others);
  }
  const changed = new Set(hidden);
  if (!changed.delete(key)) {
    changed.add(key);
  }
  return changed;
}

interface Props {
  series: readonly Pick<CurveSeries, "key" | "label" | "colour">[];
  hidden: ReadonlySet<string>;
  onHidden: (hidden: ReadonlySet<string>) => void;
  highlight: Signal<string | null>;
}

/**
 * The names of curves. A click hides one, a click with Shift shows it alone, the pointer highlights it. The same
 * properties draw it once, since it is long where many curves are compared.
 */
export const CurveLegend = memo(function CurveLegend({ series, hidden, onHidden, highlight }: Props) {
  const keys = series.map((each) => each.key);
  return (
    <ul class={styles["legend"]} aria-label="curves" onMouseLeave={() => (highlight.value = null)}>
      {series.map((each) => (
        <li key={each.key}>
          <button
            type="button"
            aria-pressed={!hidden.has(each.key)}
            title={`${each.label} (Shift: only this)`}
            onClick={(event) => onHidden(toggleHidden(hidden, keys, each.key, event.shiftKey))}
            onMouseEnter={() => (highlight.value = each.key)}
            onFocus={() => (highlight.value = each.key)}
            onBlur={() => (highlight.value = null)}
          >
            <CurveSwatch colour={each.colour} />
            <span>{each.label}</span>
          </button>
        </li>
      ))}
    </ul>
  );
});
