import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages } from "@/api/runs";
import fields from "@/parts/form.module.css";
import type { Draft, SavedCheckpoint, Source } from "./draft";

/** Returns the checkpoints that a run can start from, the newest first. */
export function startPoints(
  checkpoints: readonly Pick<Schemas["CheckpointOut"], "step" | "manifest" | "path" | "rank" | "damaged">[],
): SavedCheckpoint[] {
  const seen = new Set<string>();
  return checkpoints
    .filter(({ damaged, rank }) => !damaged && rank === 0)
    .map(({ step, manifest, path }) => ({ step, manifest, path }))
    .reverse()
    .filter((each) => {
      const key = keyOf(each);
      return !seen.has(key) && seen.add(key); // one of the same step and content was saved again
    });
}

const keyOf = ({ step, manifest, path }: SavedCheckpoint) => `${step}/${manifest}/${path}`;

/** Chooses the checkpoint of the earlier run with which the new one begins. */
export function Checkpoints({
  draft: { source },
  onChange,
}: {
  draft: Draft;
  onChange: (checkpoint: Source["checkpoint"]) => void;
}) {
  const id = source?.id ?? "";
  const saved =
    usePolled(
      `start points ${id}`,
      async () => {
        const pages = await allPages<Schemas["CheckpointsOut"]>((after) =>
          data(
            api.GET("/api/v1/runs/{id}/checkpoints", {
              params: { path: { id }, query: after === null ? {} : { after } },
            }),
          ),
        );
        return startPoints(pages.flatMap(({ checkpoints }) => checkpoints));
      },
      () => null,
    ).data ?? [];
  if (saved.length === 0 || source === null) {
    return null;
  }
  return (
    <section class={fields["section"]} aria-label="start">
      <div class={fields["field"]}>
        <label for="new-checkpoint">Start from</label>
        <select
          id="new-checkpoint"
          value={source.checkpoint === null ? "" : keyOf(source.checkpoint)}
          onChange={(event) => {
            onChange(saved.find((each) => keyOf(each) === event.currentTarget.value) ?? null);
          }}
        >
          <option value="">the beginning</option>
          {saved.map((each) => (
            <option key={keyOf(each)} value={keyOf(each)}>
              the checkpoint of step {each.step}
              {each.path !== "" && `, saved by the script as ${each.path}`}
            </option>
          ))}
        </select>
      </div>
    </section>
  );
}
