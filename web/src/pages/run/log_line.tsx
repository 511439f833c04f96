import { memo } from "preact/compat";
import type { CSSProperties } from "preact";
import { Link } from "wouter-preact";
import { cssColor, parseLine, type Span, type TextStyle } from "@/text/ansi";
import { formatBytes } from "@/text/format";
import { findPlaces, placeAddress, type PlaceInText } from "@/text/traceback";
import type { LogLine } from "./log_source";
import styles from "./log_tab.module.css";

/** One line, with its number, its source, its colours, the marks of a search, and links to places in the code. */
export const Line = memo(function Line({
  number,
  line,
  mark,
  isCurrent,
  run,
  files,
}: {
  number: number;
  line: LogLine | null;
  mark: RegExp | null;
  isCurrent: boolean;
  run: string;
  files: ReadonlySet<string> | null; // of the code of the run
}) {
  const parsed = line === null ? { spans: [], hidden: 0 } : parseLine(line.text);
  const places = files === null ? [] : findPlaces(parsed.spans.map((span) => span.text).join(""), files);
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
        {splitAt(parsed.spans, places).map(({ place, spans }, part) => {
          const content = spans.map((span, index) => (
            <span key={index} style={toCss(span.style)}>
              {mark === null ? span.text : marked(span.text, mark)}
            </span>
          ));
          return place === null ? (
            content
          ) : (
            <Link
              key={`place ${part}`}
              href={placeAddress(run, place)}
              title={`show line ${place.line} in the code`}
            >
              {content}
            </Link>
          );
        })}
        {hidden > 0 && (
          <span class={styles["hidden"]}> … {formatBytes(hidden)} more of this line: download it</span>
        )}
      </code>
    </div>
  );
});

/** Returns the spans in parts: those of a place, and those before, between and after places. */
function splitAt(
  spans: readonly Span[],
  places: readonly PlaceInText[],
): { place: PlaceInText | null; spans: Span[] }[] {
  const parts: { place: PlaceInText | null; spans: Span[] }[] = [];
  let at = 0;
  for (const { text, style } of spans) {
    for (let from = 0; from < text.length;) {
      const place = places.find(({ begin, end }) => begin <= at + from && at + from < end) ?? null;
      const next = place ? place.end : (places.find(({ begin }) => begin > at + from)?.begin ?? Infinity);
      const to = Math.min(text.length, next - at);
      const span = { text: text.slice(from, to), style };
      const last = parts.at(-1);
      if (last?.place === place) {
        last.spans.push(span);
      } else {
        parts.push({ place, spans: [span] });
      }
      from = to;
    }
    at += text.length;
  }
  return parts;
}

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
