/** What an editor chooses for a block. */
import { useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { allPages, type Run } from "@/api/runs";
import { countMetrics } from "@/pages/compare/compared_curves";
import { knownColumns } from "@/pages/runs/columns";
import { Button } from "@/parts/button";
import { MarkdownField } from "@/parts/markdown_field";
import fieldStyles from "@/parts/field.module.css";
import type { Block, BlockOf, RunsBlock } from "./blocks";
import { listMedia } from "./media_grid";
import { NamesField } from "./names_field";
import styles from "./report.module.css";
import { useBlockRuns } from "./report_runs";
import { RunsDialog } from "./runs_dialog";

type Change<Kind extends Block> = (part: Partial<Kind>) => void;

export function BlockForm({ block, onChange }: { block: Block; onChange: (block: Block) => void }) {
  const change = (part: Partial<Block>) => onChange({ ...block, ...part } as Block);
  if (block.type === "text") {
    return <MarkdownField text={block.text} onChange={(text) => change({ text })} />;
  }
  return (
    <div class={styles["form"]}>
      <label class={fieldStyles["label"]}>
        Title
        <input
          class={fieldStyles["input"]}
          value={block.title}
          maxLength={200}
          onInput={(event) => change({ title: event.currentTarget.value })}
        />
      </label>
      {block.type === "leaderboard" ? (
        <LeaderboardFields block={block} change={change} />
      ) : (
        <RunsFields block={block} change={change} />
      )}
    </div>
  );
}

function RunsFields({ block, change }: { block: RunsBlock; change: Change<Block> }) {
  const [isOpen, setOpen] = useState(false);
  const runs = useBlockRuns(block.runs);
  const columns = knownColumns(runs).filter((name) => name !== "progress");
  return (
    <>
      <div class={styles["choice"]}>
        <Button onClick={() => setOpen(true)}>Runs ({block.runs.length})</Button>
        {isOpen && (
          <RunsDialog
            chosen={runs}
            onChange={(ids) => change({ runs: ids })}
            onClose={() => setOpen(false)}
          />
        )}
      </div>
      {block.type === "curves" && <CurveFields block={block} runs={runs} columns={columns} change={change} />}
      {(block.type === "table" || block.type === "parallel") && (
        <NamesField
          label="Columns"
          names={block.columns}
          known={columns}
          placeholder="params.lr, metrics.loss"
          onChange={(names) => change({ columns: names })}
        />
      )}
      {block.type === "scatter" && (
        <>
          <ColumnField label="X axis" value={block.x} columns={columns} onChange={(x) => change({ x })} />
          <ColumnField label="Y axis" value={block.y} columns={columns} onChange={(y) => change({ y })} />
        </>
      )}
      {block.type === "media" && <MediaFields block={block} runs={runs} change={change} />}
    </>
  );
}

function ColumnField({
  label,
  value,
  columns,
  none = "choose",
  onChange,
}: {
  label: string;
  value: string;
  columns: readonly string[];
  none?: string;
  onChange: (column: string) => void;
}) {
  return (
    <label class={fieldStyles["label"]}>
      {label}
      <select
        class={fieldStyles["input"]}
        value={value}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        <option value="">{none}</option>
        {[...new Set([...columns, ...(value === "" ? [] : [value])])].map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function CurveFields({
  block,
  runs,
  columns,
  change,
}: {
  block: BlockOf<"curves">;
  runs: readonly Run[];
  columns: readonly string[];
  change: Change<BlockOf<"curves">>;
}) {
  const metrics = [...countMetrics(runs).keys()].sort();
  return (
    <>
      <NamesField
        label="Metrics"
        names={block.metrics}
        known={metrics}
        placeholder="loss"
        onChange={(names) => change({ metrics: names })}
      />
      <label class={fieldStyles["label"]}>
        X axis
        <select
          class={fieldStyles["input"]}
          value={block.x}
          onChange={(event) => change({ x: event.currentTarget.value })}
        >
          <option value="step">step</option>
          <option value="time">wall time</option>
          <option value="elapsed">time since start</option>
          {[...new Set([...metrics.map((name) => `metrics.${name}`), block.x])]
            .filter((name) => name.startsWith("metrics."))
            .map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
        </select>
      </label>
      <ColumnField
        label="Group by"
        value={block.group}
        columns={columns}
        none="each run"
        onChange={(group) => change({ group })}
      />
      <label class={fieldStyles["label"]}>
        Smoothing {block.smoothing.toFixed(2)}
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={block.smoothing}
          onInput={(event) => change({ smoothing: Number(event.currentTarget.value) })}
        />
      </label>
      <label class={styles["check"]}>
        <input
          type="checkbox"
          checked={block.log_x}
          onChange={(event) => change({ log_x: event.currentTarget.checked })}
        />
        Log x
      </label>
      <label class={styles["check"]}>
        <input
          type="checkbox"
          checked={block.log_y}
          onChange={(event) => change({ log_y: event.currentTarget.checked })}
        />
        Log y
      </label>
    </>
  );
}

function MediaFields({
  block,
  runs,
  change,
}: {
  block: BlockOf<"media">;
  runs: readonly Run[];
  change: Change<BlockOf<"media">>;
}) {
  const first = runs[0]?.id;
  const { data: items } = usePolled(
    `report media names ${first}`,
    () => (first === undefined ? Promise.resolve([]) : listMedia(first, [])),
    () => null,
  );
  const named = (items ?? []).filter((item) => block.names.includes(item.name));
  const unique = (values: readonly (string | number)[]) => [...new Set(values)].map(String);
  return (
    <>
      <NamesField
        label="Names"
        names={block.names}
        known={unique((items ?? []).map((item) => item.name))}
        placeholder="examples"
        onChange={(names) => change({ names })}
      />
      <NamesField
        label="Steps (none: the newest)"
        names={block.steps.map(String)}
        known={unique(named.map((item) => item.step))}
        placeholder="100"
        onChange={(steps) => change({ steps: steps.map(Number).filter(Number.isSafeInteger) })}
      />
    </>
  );
}

function LeaderboardFields({
  block,
  change,
}: {
  block: BlockOf<"leaderboard">;
  change: Change<BlockOf<"leaderboard">>;
}) {
  const { data: datasets } = usePolled(
    "report datasets",
    () =>
      allPages<Schemas["DatasetsOut"]>((after) =>
        data(
          api.GET("/api/v1/datasets", {
            params: { query: after === null ? {} : { after: after } },
          }),
        ),
      ),
    () => null,
  );
  const names = (datasets ?? []).flatMap((page) => page.datasets.map((dataset) => dataset.name));
  return (
    <>
      <label class={fieldStyles["label"]}>
        Dataset
        <select
          class={fieldStyles["input"]}
          value={block.dataset ?? ""}
          onChange={(event) => change({ dataset: event.currentTarget.value || null })}
        >
          <option value="">choose</option>
          {[...new Set([...names, ...(block.dataset === null ? [] : [block.dataset])])].map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <label class={fieldStyles["label"]}>
        Metric
        <input
          class={fieldStyles["input"]}
          value={block.metric}
          placeholder="of the dataset"
          onInput={(event) => change({ metric: event.currentTarget.value })}
        />
      </label>
      <label class={fieldStyles["label"]}>
        Rows
        <input
          type="number"
          min="1"
          max="100"
          class={fieldStyles["input"]}
          value={block.limit}
          onInput={(event) => {
            const limit = event.currentTarget.valueAsNumber;
            if (Number.isInteger(limit) && limit >= 1 && limit <= 100) {
              change({ limit });
            }
          }}
        />
      </label>
    </>
  );
}
