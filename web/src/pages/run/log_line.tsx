import { memo } from "preact/compat";
import type { CSSProperties } from "preact";
import { cssColor, parseLine, type TextStyle } from "@/text/ansi";
import { formatBytes } from "@/text/format";
import type { LogLine } from "./log_source";
import styles from "./log_tab.module.css";

/** One line, with its number, its source, its colours, and the marks of a search. */
export const Line = memo(function Line({
  number,
  line,
  mark,
  isCurrent,
}: {
  number: number;
  line: LogLine | null;
  mark: RegExp | null;
  isCurrent: boolean;
}) {
  const parsed = line === null ? { spans: [], hidden: 0 } : parseLine(line.text);
  const hidden = (line?.hiddenBytes ?? 0) + parsed.hidden;
  const isError = line?.source?.endsWith("stderr") ?? false;
  return (
    <div class={`${styles["line"]} ${isCurrent ? styles["current"] : ""} ${isError ? styles["stderr"] : ""}`}>
      <span class={styles["number"]}>{number}</span>
      {line?.source !== undefined && (
        <span class={styles["source"]} title={line.source}>
          {line.source.replace(" stdout", "").replace(" stderr", "!")}
        </span>
      )}
      <code>
        {line === null && "…"}
        {parsed.spans.map((span, index) => (
          <span key={index} style={toCss(span.style)}>
            {mark === null ? span.text : marked(span.text, mark)}
          </span>
        ))}
        {hidden > 0 && (
          <span class={styles["hidden"]}> … {formatBytes(hidden)} more of this line: download it</span>
        )}
      </code>
    </div>
  );
});

function marked(text: string, mark: RegExp) {
  const parts: preact.ComponentChild[] = [];
  let at = 0;
  for (const match of text.matchAll(mark)) {
    if (match[0] !== "") {
      parts.push(text.slice(at, match.index), <mark key={match.index}>{match[0]}</mark>);
      at = match.index + match[0].length;
    }
  }
  return [...parts, text.slice(at)];
}

function toCss(style: TextStyle): CSSProperties {
  let { color, background } = style;
  if (style.inverse) {
    [color, background] = [background, color];
  }
  return {
    ...(color !== undefined && { color: cssColor(color) }),
    ...(background !== undefined && { backgroundColor: cssColor(background) }),
    ...(style.inverse && color === undefined && { color: "var(--page)" }),
    ...(style.inverse && background === undefined && { backgroundColor: "var(--text)" }),
    ...(style.bold && { fontWeight: 700 }),
    ...(style.dim && { opacity: 0.7 }),
    ...(style.italic && { fontStyle: "italic" }),
    ...(style.underline && { textDecoration: "underline" }),
  };
}
