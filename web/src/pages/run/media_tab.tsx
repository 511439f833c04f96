import { useMemo, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { usePolled } from "@/api/polling";
import { isFinal, listMedia, type MediaItem, type Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { compilePattern } from "@/text/pattern";
import { MediaContent } from "./media_content";
import { MediaList } from "./media_list";
import styles from "./media_tab.module.css";

const POLL_MS = 4000;
const MAX_SHOWN = 64; // items of a name at one step

/** The media of a run: a card for each name, with a slider over its steps. */
export function MediaTab({ run }: { run: Run }) {
  const [search, setSearch] = useSearchParams();
  const [filter, setFilter] = useState("");
  const isList = search.get("view") === "list";
  const set = (name: string, value: string) =>
    setSearch(
      (old) => {
        const next = new URLSearchParams(old);
        next.delete(name);
        if (value !== "") {
          next.set(name, value);
        }
        return next;
      },
      { replace: true },
    );
  const { data: items, error } = usePolled(
    `media ${run.id} ${run.phase}`,
    () => listMedia(run.id),
    () => (isFinal(run) ? null : POLL_MS),
  );
  const byName = useMemo(() => group(items ?? []), [items]);
  if (items === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (byName.size === 0) {
    return <Empty title="No media" command="hop.log(sample=hop.Image(image), step=step)" />;
  }
  const matches = compilePattern(filter);
  const names = [...byName.keys()].filter(matches ?? (() => true));
  return (
    <>
      <div class={styles["bar"]}>
        <input
          type="search"
          class={styles["filter"]}
          placeholder="regular expression"
          aria-label="filter names"
          aria-invalid={matches === null}
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <Button aria-pressed={isList} onClick={() => set("view", isList ? "" : "list")}>
          List and picture
        </Button>
      </div>
      {matches === null && <p role="alert">{filter} is not a regular expression</p>}
      {isList ? (
        <MediaList
          run={run}
          items={items.filter((item) => matches?.(item.name) ?? true)}
          chosen={search.get("item") ?? ""}
          onChoose={(id) => set("item", id)}
        />
      ) : (
        <div class={styles["cards"]}>
          {names.map((name) => (
            <Card key={name} run={run} name={name} items={byName.get(name) ?? []} />
          ))}
        </div>
      )}
    </>
  );
}

function group(items: readonly MediaItem[]): Map<string, MediaItem[]> {
  const byName = new Map<string, MediaItem[]>();
  for (const item of items) {
    const found = byName.get(item.name);
    if (found) {
      found.push(item);
    } else {
      byName.set(item.name, [item]);
    }
  }
  return byName;
}

function Card({ run, name, items }: { run: Run; name: string; items: readonly MediaItem[] }) {
  const steps = useMemo(() => [...new Set(items.map((item) => item.step))].sort((a, b) => a - b), [items]);
  const [chosen, setChosen] = useState<number | null>(null); // null: the newest
  const position = chosen === null ? steps.length - 1 : Math.max(0, steps.indexOf(chosen));
  const step = steps[position] ?? 0;
  const shown = items.filter((item) => item.step === step);
  return (
    <section class={styles["card"]} aria-label={name}>
      <header>
        <h2>
          <Name text={name} />
        </h2>
        <span>step {step}</span>
      </header>
      {steps.length > 1 && (
        <input
          type="range"
          min={0}
          max={steps.length - 1}
          value={position}
          aria-label={`step of ${name}`}
          aria-valuetext={`step ${step}`}
          onInput={(event) => {
            const next = Number(event.currentTarget.value);
            setChosen(next === steps.length - 1 ? null : (steps[next] ?? null));
          }}
        />
      )}
      <div class={styles["items"]}>
        {shown.slice(0, MAX_SHOWN).map((item) => (
          <figure key={item.id}>
            <MediaContent run={run} item={item} />
            {(item.caption !== "" || item.rank > 0) && (
              <figcaption>
                {item.caption}
                {item.rank > 0 && ` (rank ${item.rank})`}
              </figcaption>
            )}
          </figure>
        ))}
      </div>
      {shown.length > MAX_SHOWN && <p>and {shown.length - MAX_SHOWN} more: hop media</p>}
    </section>
  );
}
