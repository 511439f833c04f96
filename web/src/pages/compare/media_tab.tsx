import { useMemo, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { usePolled } from "@/api/polling";
import { listMedia } from "@/api/runs";
import { CurveSwatch } from "@/charts/curve_swatch";
import { MediaContent } from "@/pages/run/media_content";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import { useStepKeys } from "@/parts/step_keys";
import { formatCount } from "@/text/format";
import { compilePattern } from "@/text/pattern";
import pageStyles from "./compare.module.css";
import type { CompareParts } from "./compare_parts";
import { mediaRows, mediaSteps } from "./compared_media";
import styles from "./media_tab.module.css";
import { RowFilter } from "./row_filter";

const MAX_RUNS = 12;
const PAGE_ROWS = 24;
const POLL_MS = 5000;

/** Images, sounds, texts and tables of several runs: a row for each sample, one step for all. */
export function MediaTab({ runs, labels, view, change, hidden, isLive }: CompareParts & { isLive: boolean }) {
  const [limit, setLimit] = useState(PAGE_ROWS);
  const visible = runs.flatMap((run, place) => (hidden.has(run.id) ? [] : [{ run, place }]));
  const shown = visible.slice(0, MAX_RUNS);
  const { data: lists, error } = usePolled(
    `media ${isLive} ${shown.map(({ run }) => run.id).join(" ")}`,
    () => Promise.all(shown.map(({ run }) => listMedia(run.id))),
    () => (isLive ? POLL_MS : null),
  );
  const steps = useMemo(() => mediaSteps(lists ?? []), [lists]);
  // the newest of the steps that are not after the one of the address
  const position =
    view.step === null
      ? steps.length - 1
      : Math.max(
          0,
          steps.findLastIndex((each) => each <= (view.step ?? 0)),
        );
  const step = steps[position] ?? 0;
  const rows = useMemo(() => mediaRows(lists ?? [], step), [lists, step]);
  const go = (to: number) => {
    const next = Math.max(0, Math.min(steps.length - 1, to));
    change({ step: next === steps.length - 1 ? null : (steps[next] ?? null) });
  };
  useStepKeys("ArrowLeft", "ArrowRight", (by) => go(position + by));
  if (lists === null) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (steps.length === 0) {
    return <Empty title="These runs have no media" command="hop.log(sample=hop.Image(image), step=step)" />;
  }
  const matches = compilePattern(view.rows);
  const found = rows.filter(
    (row) => (matches?.(row.name) ?? true) && (!view.isDifferencesOnly || row.isDifferent),
  );
  return (
    <>
      <div class={pageStyles["bar"]} role="group" aria-label="media">
        <label>
          Step
          <input
            type="range"
            min={0}
            max={steps.length - 1}
            value={position}
            aria-valuetext={`step ${step}`}
            onInput={(event) => go(Number(event.currentTarget.value))}
          />
          <output class={pageStyles["count"]}>{step}</output>
        </label>
        <Button aria-label="step before" disabled={position === 0} onClick={() => go(position - 1)}>
          ←
        </Button>
        <Button
          aria-label="step after"
          disabled={position >= steps.length - 1}
          onClick={() => go(position + 1)}
        >
          →
        </Button>
        <RowFilter view={view} change={change} isInvalid={matches === null} />
        {visible.length > MAX_RUNS && (
          <p role="status">
            The first {MAX_RUNS} of {formatCount(visible.length, "run")}; hide some above to see others.
          </p>
        )}
      </div>
      {found.length === 0 && matches && (
        <Empty title={view.isDifferencesOnly ? "No sample differs at this step" : "No row has such a name"} />
      )}
      <div class={styles["scroll"]} tabIndex={0} role="region" aria-label={`media at step ${step}`}>
        <table class={styles["table"]}>
          <thead>
            <tr>
              <td />
              {shown.map(({ run, place }) => (
                <th key={run.id} scope="col">
                  <CurveSwatch colour={place} />{" "}
                  <Link href={`/runs/${run.id}?tab=media`}>{labels[place]}</Link>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(0, limit).map((row) => (
              <tr key={row.key}>
                <th scope="row">
                  <Name text={row.name} />
                  {row.index > 0 && ` ${row.index + 1}`}
                  {row.rank > 0 && <span> rank {row.rank}</span>}
                </th>
                {row.items.map((item, column) => {
                  const run = shown[column]?.run;
                  return (
                    <td key={run?.id}>
                      {item && run ? (
                        <figure>
                          <MediaContent run={run} item={item} />
                          <figcaption>
                            {item.caption}
                            {item.step !== step && <em> step {item.step}</em>}
                          </figcaption>
                        </figure>
                      ) : (
                        <span class={styles["none"]}>none</span>
                      )}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.length > limit && (
        <Button onClick={() => setLimit(limit + PAGE_ROWS)}>Show more ({found.length - limit})</Button>
      )}
    </>
  );
}
