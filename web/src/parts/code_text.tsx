/** Text of a file with numbered lines. The line that the address names is marked and in sight. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { countLines, lineOf, withLine } from "@/text/line_address";
import styles from "./code_text.module.css";

const ROW = 19; // pixels; as in the styles
const OVERSCAN = 20; // numbers beyond those in sight

export function CodeText({ text, label }: { text: string; label: string }) {
  const scroller = useRef<HTMLDivElement>(null);
  const [path] = useLocation();
  const [search] = useSearchParams();
  const count = useMemo(() => countLines(text), [text]);
  const wanted = lineOf(search);
  const line = wanted !== null && wanted <= count ? wanted : null;
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
      box.scrollTop = Math.max(0, (line - 1) * ROW - box.clientHeight / 3);
      box.scrollIntoView({ block: "nearest" }); // on a phone, the list of files is above it
    }
  }, [line, text]);
  const digits = String(count).length;
  return (
    <div ref={scroller} class={styles["code"]} role="region" aria-label={label} tabIndex={0}>
      <div class={styles["sheet"]}>
        <div
          class={styles["numbers"]}
          style={{ width: `calc(${digits}ch + 2 * var(--space-2) + 4px)`, height: `${count * ROW}px` }}
        >
          {numbers.getVirtualItems().map((item) => {
            const number = item.index + 1;
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
          <div class={styles["marked"]} style={{ top: `${(line - 1) * ROW}px` }} aria-hidden="true" />
        )}
        <pre>{text}</pre>
      </div>
    </div>
  );
}
