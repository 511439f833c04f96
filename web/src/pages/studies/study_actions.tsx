/** What `hop search` and `hop fork` can do to a study. */
import { Menu } from "@base-ui/react/menu";
import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { api, data } from "@/api/client";
import { whyNoChange, whyNoSubmit } from "@/api/rights";
import { isFinal, type Run } from "@/api/runs";
import { Button } from "@/parts/button";
import { ActionDialog } from "@/parts/action_dialog";
import { EditDialog } from "@/pages/runs/edit_dialog";
import type { Study, StudyView, Trial } from "./study_data";
import styles from "./studies.module.css";

type Dialog = "stop" | "continue" | "again" | "best" | "note";

/** The buttons of a study, for its phase. */
export function StudyActions({ view, reload }: { view: StudyView; reload: () => void }) {
  const { run, study } = view;
  const [open, setOpen] = useState<Dialog | null>(null);
  const [, navigate] = useLocation();
  const close = () => {
    setOpen(null);
    reload();
  };
  const refusal = whyNoChange(run);
  const change = { disabled: refusal !== "", title: refusal };
  const maySubmit = whyNoSubmit() === "";
  const isEnded = isFinal(run);
  // a fork of a best model has one trial, which ends with it
  const canContinue = isEnded && !(run.phase === "succeeded" && hasBeginning(run));
  const onStarted = (name: string) => navigate(`/studies/${name}`);
  return (
    <div class={styles["actions"]}>
      <Link href={`/runs/${encodeURI(run.name)}`} class={styles["button"]}>
        Run, log and files
      </Link>
      {canContinue && (
        <Button
          kind="primary"
          disabled={whyNoSubmit() !== ""}
          title={whyNoSubmit()}
          onClick={() => setOpen("continue")}
        >
          Continue
        </Button>
      )}
      {!isEnded && !run.stop_requested && (
        <Button kind="danger" {...change} onClick={() => setOpen("stop")}>
          Stop
        </Button>
      )}
      <Menu.Root>
        <Menu.Trigger className={styles["more"] ?? ""} aria-label="more actions">
          ⋯
        </Menu.Trigger>
        <Menu.Portal>
          <Menu.Positioner align="end" sideOffset={4} className={styles["positioner"] ?? ""}>
            <Menu.Popup className={styles["menu"] ?? ""}>
              {refusal !== "" && <p class={styles["refusal"]}>{refusal}</p>}
              {maySubmit && <Menu.Item onClick={() => setOpen("again")}>Fork: search again</Menu.Item>}
              {maySubmit && study.parallel === "mop" && study.best !== null && (
                <Menu.Item onClick={() => setOpen("best")}>Train the best model further</Menu.Item>
              )}
              {refusal === "" && (
                <Menu.Item onClick={() => setOpen("note")}>Edit name, note and tags</Menu.Item>
              )}
            </Menu.Popup>
          </Menu.Positioner>
        </Menu.Portal>
      </Menu.Root>
      {open === "stop" && <StopStudyDialog run={run} onClose={close} />}
      {open === "continue" && (
        <ContinueDialog
          run={run}
          study={study}
          trials={view.trials.length}
          onClose={close}
          onStarted={onStarted}
        />
      )}
      {open === "again" && <AgainDialog run={run} onClose={close} onStarted={onStarted} />}
      {open === "best" && <BestDialog run={run} study={study} onClose={close} onStarted={onStarted} />}
      {open === "note" && <EditDialog run={run} onClose={close} onDone={reload} />}
    </div>
  );
}

function hasBeginning(run: Run): boolean {
  return Boolean((run.spec.study as Record<string, unknown> | null | undefined)?.["beginning"]);
}

function StopStudyDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  return (
    <ActionDialog
      title={`Stop ${run.name}?`}
      confirm="Stop the study"
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        await data(api.POST("/api/v1/runs/{id}/stop", { params: { path: { id: run.id } }, body: {} }));
      }}
    >
      <p>Its trials stop with it. Their values count, and the study can be continued later.</p>
    </ActionDialog>
  );
}

/** Stops a trial: that of a study with hopping trials, or the run of the trial. */
export function StopTrialDialog({
  run,
  study,
  trial,
  onClose,
}: {
  run: Run;
  study: Study;
  trial: Trial;
  onClose: () => void;
}) {
  return (
    <ActionDialog
      title={`Stop trial ${trial.trial}?`}
      confirm="Stop the trial"
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        const isMop = study.parallel === "mop";
        if (!isMop && trial.run === null) {
          throw new Error(`trial ${trial.trial} has no run yet: try again in a moment`);
        }
        await data(
          api.POST("/api/v1/runs/{id}/stop", {
            params: { path: { id: isMop ? run.id : (trial.run ?? "") } },
            body: isMop ? { trial: trial.trial } : {},
          }),
        );
      }}
    >
      <p>
        The study continues. The best value of the trial counts, and the searcher proposes the next trial.
      </p>
    </ActionDialog>
  );
}

function ContinueDialog({
  run,
  study,
  trials,
  onClose,
  onStarted,
}: {
  run: Run;
  study: Study;
  trials: number;
  onClose: () => void;
  onStarted: (name: string) => void;
}) {
  const isDone = run.phase === "succeeded";
  const least = isDone ? (study.trial_limit ?? trials) + 1 : 1;
  const [limit, setLimit] = useState(isDone ? String(least) : String(study.trial_limit ?? ""));
  return (
    <ActionDialog
      title={`Continue ${run.name}`}
      confirm="Continue the study"
      onClose={onClose}
      onConfirm={async () => {
        const next = await data(
          api.POST("/api/v1/runs/{id}/continue", {
            params: { path: { id: run.id }, query: { plan: 1 } },
            body: limit === "" ? {} : { trials: Number(limit) },
          }),
        );
        onStarted(next.name);
      }}
    >
      <p>
        A new run takes over the journal, the trials and the trained states. Only work that was in progress is
        repeated.
      </p>
      <label>
        Trials in total
        <input
          name="trials"
          type="number"
          min={least}
          step={1}
          required={isDone}
          value={limit}
          placeholder="as before"
          onInput={(event) => setLimit(event.currentTarget.value)}
        />
      </label>
    </ActionDialog>
  );
}

/** Asks before a study searches again. */
export function AgainDialog({
  run,
  onClose,
  onStarted,
}: {
  run: Run;
  onClose: () => void;
  onStarted: (name: string) => void;
}) {
  const [label, setLabel] = useState("");
  return (
    <ActionDialog
      title={`Fork ${run.name}`}
      confirm="Search again"
      onClose={onClose}
      onConfirm={async () => {
        const fork = await data(
          api.POST("/api/v1/runs/{id}/fork", {
            params: { path: { id: run.id }, query: { plan: 1 } },
            body: label === "" ? {} : { label },
          }),
        );
        onStarted(fork.name);
      }}
    >
      <p>A new study with the same search, code, data versions and environment.</p>
      <NameField run={run} label={label} onLabel={setLabel} />
    </ActionDialog>
  );
}

function BestDialog({
  run,
  study,
  onClose,
  onStarted,
}: {
  run: Run;
  study: Study;
  onClose: () => void;
  onStarted: (name: string) => void;
}) {
  const [more, setMore] = useState("");
  const [label, setLabel] = useState("");
  return (
    <ActionDialog
      title={`Train the best model of ${run.name} further`}
      confirm="Train further"
      onClose={onClose}
      onConfirm={async () => {
        const fork = await data(
          api.POST("/api/v1/runs/{id}/fork", {
            params: { path: { id: run.id }, query: { plan: 1 } },
            body: {
              checkpoint: "best",
              ...(more !== "" && { epochs: Number(more) }),
              ...(label !== "" && { label }),
            },
          }),
        );
        onStarted(fork.name);
      }}
    >
      <p>
        A new study of one trial starts from the best state, with the parameters of trial {study.best?.trial}.
      </p>
      <label>
        More {study.unit}s
        <input
          name="epochs"
          type="number"
          min={1}
          step={1}
          value={more}
          placeholder={`${study.max_budget}, as in the study`}
          onInput={(event) => setMore(event.currentTarget.value)}
        />
      </label>
      <NameField run={run} label={label} onLabel={setLabel} />
    </ActionDialog>
  );
}

function NameField({ run, label, onLabel }: { run: Run; label: string; onLabel: (label: string) => void }) {
  return (
    <label>
      Name
      <input
        name="label"
        value={label}
        placeholder={run.spec.label || "none"}
        onInput={(event) => onLabel(event.currentTarget.value)}
      />
    </label>
  );
}
