import { useEffect, useMemo, useRef } from "preact/hooks";
import type { MediaItem, Run } from "@/api/runs";
import { Name } from "@/parts/name";
import { useStepKeys } from "@/parts/step_keys";
import { MediaContent } from "./media_content";
import styles from "./media_tab.module.css";

const MAX_LISTED = 1000;

/** The list of items beside the chosen one, which is large. Up and down go through the list. */
export function MediaList({
  run,
  items,
  chosen,
  onChoose,
}: {
  run: Run;
  items: readonly MediaItem[];
  chosen: string;
  onChoose: (id: string) => void;
}) {
  const listed = useMemo(
    () => items.toSorted((a, b) => b.step - a.step || (a.name < b.name ? -1 : 1) || a.index - b.index),
    [items],
  ).slice(0, MAX_LISTED);
  const at = Math.max(
    0,
    listed.findIndex((item) => item.id === chosen),
  );
  const item = listed[at];
  const list = useRef<HTMLUListElement>(null);
  useStepKeys("ArrowUp", "ArrowDown", (by) => {
    const next = listed[at + by];
    if (next) {
      onChoose(next.id);
    }
  });
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  return (
    <div class={styles["side"]}>
      <div>
        <ul ref={list} class={styles["list"]} aria-label="media">
          {listed.map((each) => (
            <li key={each.id}>
              <button
                type="button"
                aria-current={each === item ? "true" : undefined}
                onClick={() => onChoose(each.id)}
              >
                <Name text={each.name} />
                <span>
                  step {each.step}
                  {each.index > 0 && `, ${each.index + 1}`}
                </span>
                {each.caption !== "" && <small>{each.caption}</small>}
              </button>
            </li>
          ))}
        </ul>
        {items.length > MAX_LISTED && <p>The newest {MAX_LISTED}; find others by their name.</p>}
      </div>
      {item && (
        <figure class={styles["large"]} aria-label={`${item.name}, step ${item.step}`}>
          <MediaContent key={item.id} run={run} item={item} />
          <figcaption>
            <Name text={item.name} />, step {item.step}
            {item.caption !== "" && <>: {item.caption}</>}
            {item.rank > 0 && ` (rank ${item.rank})`}
          </figcaption>
        </figure>
      )}
    </div>
  );
}
