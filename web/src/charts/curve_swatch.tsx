import styles from "./curve_chart.module.css";
import { curveColour, curveDash } from "./palette";
import { shownTheme } from "./shown_theme";

/** A short line in the colour and the dashes of a curve. */
export function CurveSwatch({ colour }: { colour: number }) {
  return (
    <svg class={styles["swatch"]} width="16" height="8" aria-hidden="true">
      <line
        x1="0"
        x2="16"
        y1="4"
        y2="4"
        stroke={curveColour(colour, shownTheme.value)}
        stroke-width="3"
        stroke-dasharray={curveDash(colour).join(" ")}
      />
    </svg>
  );
}
