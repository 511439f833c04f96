/** Media of runs side by side: a row for each name and step, a column for each run. */
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, isFinal, type MediaItem, type Run } from "@/api/runs";
import { MediaContent } from "@/pages/run/media_content";
import { ErrorNotice, Loading } from "@/parts/notices";
import styles from "./report.module.css";
import { runLabel } from "./report_runs";

const POLL_MS = 10_000;
const MAX_ITEMS = 8; // in a cell
const NEWEST = "newest";

export interface MediaRow {
  name: string;
  step: string;
  cells: MediaItem[][]; // for each run
}

/** Returns the rows. Without steps, those of the newest step of each run. */
export function mediaRows(
  media: readonly (readonly MediaItem[])[],
  names: readonly string[],
  steps: readonly number[],
): MediaRow[] {
  return names
    .flatMap((name) => (steps.length === 0 ? [NEWEST] : steps.map(String)).map((step) => ({ name, step })))
    .map(({ name, step }) => ({
      name,
      step,
      cells: media.map((items) => {
        const named = items.filter((item) => item.name === name);
        const wanted = step === NEWEST ? Math.max(...named.map((item) => item.step)) : Number(step);
        return named.filter((item) => item.step === wanted);
      }),
    }))
    .filter((row) => row.cells.some((cell) => cell.length > 0));
}

export async function listMedia(id: string, names: readonly string[]): Promise<MediaItem[]> {
  const pages = await allPages<Schemas["MediaOut"]>((after) =>
    data(
      api.GET("/api/v1/runs/{id}/media", {
        params: {
          path: { id },
          query: {
            ...(names.length > 0 && names.every((name) => !/[,*]/.test(name)) && { names: names.join(",") }),
            ...(after !== null && { after: after }),
          },
        },
      }),
    ),
  );
  return pages.flatMap((page) => page.media);
}

export function MediaGrid({
  runs,
  names,
  steps,
}: {
  runs: readonly Run[];
  names: readonly string[];
  steps: readonly number[];
}) {
  const ids = runs.map((run) => run.id);
  const { data: media, error } = usePolled(
    `report media ${ids.join(" ")} ${names.join("\n")}`,
    () => Promise.all(ids.map((id) => listMedia(id, names).catch(() => []))),
    () => (runs.every(isFinal) ? null : POLL_MS),
  );
  if (media === null) {
    return error === null ? <Loading rows={4} /> : <ErrorNotice error={error} />;
  }
  const rows = mediaRows(media, names, steps);
  if (rows.length === 0) {
    return <p class={styles["nothing"]}>The runs have no such media.</p>;
  }
  return (
    <div class={styles["media"]} tabIndex={0} role="group" aria-label="media">
      <table>
        <thead>
          <tr>
            <td />
            {runs.map((run) => (
              <th key={run.id} scope="col">
                {runLabel(run)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.name}\n${row.step}`}>
              <th scope="row">{row.step === NEWEST ? row.name : `${row.name}, step ${row.step}`}</th>
              {row.cells.map((cell, index) => (
                <td key={runs[index]?.id}>
                  {cell.slice(0, MAX_ITEMS).map((item) => {
                    const run = runs[index];
                    return run && <MediaContent key={item.id} run={run} item={item} />;
                  })}
                  {cell.length > MAX_ITEMS && <p>and {cell.length - MAX_ITEMS} more</p>}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
