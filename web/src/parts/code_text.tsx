/** Text of a file with numbered lines. The line that the address names is marked and in sight. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { countLines, lineOf, withLine } from "@/text/line_address";
import styles from "./code_text.module.css";

const ROW = 19; // pixels; as in the styles
const OVERSCAN = 20; // numbers beyond those in sight

/** `first`: the number of the first line of a part; null while it is not known. */
export function CodeText({ text, label, first = 1 }: { text: string; label: string; first?: number | null }) {
  const scroller = useRef<HTMLDivElement>(null);
  const [path] = useLocation();
  const [search] = useSearchParams();
  const count = useMemo(() => countLines(text), [text]);
  const wanted = lineOf(search);
  const row = wanted === null || first === null ? -1 : wanted - first;
  const line = row >= 0 && row < count ? wanted : null;
  const numbers = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: OVERSCAN,
  });
  const lastClicked = useRef<number | null>(null);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (line !== null && box !== null && line !== lastClicked.current) {
      box.scrollTop = Math.max(0, row * ROW - box.clientHeight / 3);
      box.scrollIntoView({ block: "nearest" }); // on a phone, the list of files is above it
    }
  }, [line, row, text]);
  const digits = String((first ?? 1) + count - 1).length;
  return (
    <div ref={scroller} class={styles["code"]} role="region" aria-label={label} tabIndex={0}>
      <div class={styles["sheet"]}>
        <div
          class={styles["numbers"]}
          style={{ width: `calc(${digits}ch + 2 * var(--space-2) + 4px)`, height: `${count * ROW}px` }}
        >
          {(first === null ? [] : numbers.getVirtualItems()).map((item) => {
            const number = item.index + (first ?? 1);
            return (
              <Link
                key={item.key}
                href={`${path}?${withLine(search, number)}`}
                replace
                class={styles["number"]}
                style={{ transform: `translateY(${item.start}px)` }}
                tabIndex={-1} // a stop for each line would hide all that comes after the text
                aria-label={`line ${number}`}
                aria-current={number === line ? "location" : undefined}
                onClick={() => (lastClicked.current = number)}
              >
                {number}
              </Link>
            );
          })}
        </div>
        {line !== null && (
          <div class={styles["marked"]} style={{ top: `${row * ROW}px` }} aria-hidden="true" />
        )}
        <pre>{text}</pre>
      </div>
    </div>
  );
}
