import { useState } from "preact/hooks";
import { api, data } from "@/api/client";
import type { Dataset } from "@/api/datasets";
import { ActionDialog } from "@/parts/action_dialog";

const DIRECTIONS = { "": null, higher: true, lower: false } as const;

/** Sets what the leaderboard of a dataset ranks by. `metric`: what it ranks by now. */
export function MetricDialog({
  dataset,
  metric,
  names,
  onClose,
  onChanged,
}: {
  dataset: Dataset;
  metric: string;
  names: readonly string[];
  onClose: () => void;
  onChanged: () => void;
}) {
  const [name, setName] = useState(dataset.metric ?? "");
  const [direction, setDirection] = useState<keyof typeof DIRECTIONS>(
    dataset.higher_is_better === null || dataset.higher_is_better === undefined
      ? ""
      : dataset.higher_is_better
        ? "higher"
        : "lower",
  );
  return (
    <ActionDialog
      title={`Rank the runs on ${dataset.name}`}
      confirm="Save"
      onClose={onClose}
      onConfirm={async () => {
        await data(
          api.PATCH("/api/v1/datasets/{name}", {
            params: { path: { name: dataset.name } },
            body: { metric: name.trim(), higher_is_better: DIRECTIONS[direction] },
          }),
        );
        onChanged();
      }}
    >
      <p>The ranks change for all users. A run without the metric is not on the leaderboard.</p>
      <label>
        Metric
        <input
          value={name}
          list="metrics-of-dataset"
          placeholder={`the one that most runs have${metric ? `: ${metric}` : ""}`}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </label>
      <datalist id="metrics-of-dataset">
        {names.map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
      <label>
        Which values are better
        <select
          value={direction}
          onChange={(event) => setDirection(event.currentTarget.value as keyof typeof DIRECTIONS)}
        >
          <option value="">as the metric&apos;s name says</option>
          <option value="higher">higher values</option>
          <option value="lower">lower values</option>
        </select>
      </label>
    </ActionDialog>
  );
}
