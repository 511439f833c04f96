import { useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { session } from "@/api/session";
import { ActionDialog } from "@/parts/action_dialog";
import { Button } from "@/parts/button";
import fieldStyles from "@/parts/field.module.css";
import { ErrorNotice } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import styles from "./cluster.module.css";
import { EMPTY_FORM, toReservation, type ReserveForm } from "./reserve_form";

/** A form that reserves nodes or resources. A check says what the reservation would do, before it is made. */
export function ReserveDialog({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const isOwner = session.value?.owner ?? false;
  const ownQueues = session.value?.admin_queues ?? [];
  const [form, setForm] = useState<ReserveForm>({
    ...EMPTY_FORM,
    queue: isOwner ? "" : (ownQueues[0] ?? ""),
  });
  const [checked, setChecked] = useState<Schemas["GrantedOut"] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const { data: choices } = usePolled(
    "choices of a reservation",
    async () => {
      const [{ nodes }, { queues }] = await Promise.all([
        data(api.GET("/api/v1/nodes")),
        data(api.GET("/api/v1/queues")),
      ]);
      return { nodes: nodes.map((node) => node.id), queues: queues.map((queue) => queue.name) };
    },
    () => null,
  );
  const set = (part: Partial<ReserveForm>) => {
    setForm((old) => ({ ...old, ...part }));
    setChecked(null);
    setError(null);
  };
  const send = (dryRun: 0 | 1) =>
    data(
      api.POST("/api/v1/reservations", { params: { query: { dry_run: dryRun } }, body: toReservation(form) }),
    );
  const check = () => {
    setError(null);
    Promise.resolve()
      .then(() => send(1))
      .then(setChecked)
      .catch(setError);
  };
  const reserve = async () => {
    await send(0);
    onDone();
  };
  const text = (
    name: keyof ReserveForm,
    label: string,
    rest: { type?: string; placeholder?: string; required?: boolean } = {},
  ) => (
    <label>
      {label}
      <input
        class={fieldStyles["input"]}
        {...rest}
        value={String(form[name])}
        onInput={(event) => set({ [name]: event.currentTarget.value })}
      />
    </label>
  );
  const queues = isOwner ? (choices?.queues ?? []) : ownQueues;
  return (
    <ActionDialog title="Reserve" confirm="Reserve" onConfirm={reserve} onClose={onClose}>
      {text("name", "Name", { required: true, placeholder: "exam" })}
      <div class={styles["pair"]}>
        {text("start", "Start", { type: "datetime-local", required: true })}
        {text("end", "End", { type: "datetime-local", required: true })}
      </div>
      <div class={styles["pair"]}>
        {isOwner && text("users", "Users", { placeholder: "alice, bob" })}
        <label>
          Queue
          <select
            class={fieldStyles["input"]}
            value={form.queue}
            onChange={(event) => set({ queue: event.currentTarget.value })}
          >
            {isOwner && <option value="">none</option>}
            {queues.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      </div>
      <label>
        What
        <select
          class={fieldStyles["input"]}
          value={form.what}
          onChange={(event) => set({ what: event.currentTarget.value === "nodes" ? "nodes" : "pieces" })}
        >
          <option value="nodes">whole nodes</option>
          <option value="pieces">resources on any node</option>
        </select>
      </label>
      {form.what === "nodes" ? (
        <fieldset class={styles["nodeChoices"]}>
          <legend>Nodes</legend>
          {(choices?.nodes ?? []).map((node) => (
            <label key={node} class={styles["check"]}>
              <input
                type="checkbox"
                checked={form.nodes.includes(node)}
                onChange={(event) =>
                  set({
                    nodes: event.currentTarget.checked
                      ? [...form.nodes, node]
                      : form.nodes.filter((each) => each !== node),
                  })
                }
              />
              {node}
            </label>
          ))}
        </fieldset>
      ) : (
        <div class={styles["pair"]}>
          {text("count", "Pieces", { type: "number" })}
          {text("gpus", "GPUs each", { type: "number" })}
          {text("model", "Model", { placeholder: "any" })}
          {text("cpus", "CPUs each", { type: "number" })}
          {text("memoryGib", "GiB each", { type: "number" })}
        </div>
      )}
      <div class={styles["pair"]}>
        <label>
          Repeats
          <select
            class={fieldStyles["input"]}
            value={form.every}
            onChange={(event) => set({ every: event.currentTarget.value })}
          >
            <option value="0">once</option>
            <option value="1">every day</option>
            <option value="7">every week</option>
          </select>
        </label>
        {form.every !== "0" && text("until", "Until", { type: "datetime-local" })}
      </div>
      <div class={pageStyles["bar"]}>
        <Button onClick={check}>Check</Button>
        {checked && (
          <p role="status">
            It would be granted on {[...new Set(checked.reservation.nodes)].join(", ")}.{" "}
            {checked.warnings.join(" ")}
          </p>
        )}
      </div>
      {error !== null && <ErrorNotice error={error} />}
    </ActionDialog>
  );
}
