import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { api, data } from "@/api/client";
import { usePolled } from "@/api/polling";
import { whyNoChange } from "@/api/rights";
import { isFinal } from "@/api/runs";
import { CurveChart } from "@/charts/curve_chart";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { ErrorNotice, Loading } from "@/parts/notices";
import { formatNumber } from "@/text/format";
import { StopTrialDialog } from "./study_actions";
import type { StudyView, Trial } from "./study_data";
import { TrialState } from "./trial_state";
import styles from "./studies.module.css";

const POLL_MS = 3000;

/** One trial: its params, its curve, where its state comes from, and its error. */
export function TrialDialog({ view, name, onClose }: { view: StudyView; name: string; onClose: () => void }) {
  const { run, study } = view;
  const [isStopping, setStopping] = useState(false);
  const { data: trial, error } = usePolled(
    `trial ${run.id} ${name} ${run.phase}`,
    () =>
      data(
        api.GET("/api/v1/runs/{id}/study/trials/{trial}", { params: { path: { id: run.id, trial: name } } }),
      ),
    () => (isFinal(run) ? null : POLL_MS),
  );
  if (isStopping && trial) {
    return <StopTrialDialog run={run} study={study} trial={trial} onClose={() => setStopping(false)} />;
  }
  const refusal = whyNoChange(run);
  const isLive = trial !== null && (trial.state === "training" || trial.state === "paused");
  return (
    <Dialog title={`Trial ${name}`} isOpen onClose={onClose} isWide>
      {trial === null ? (
        error === null ? (
          <Loading />
        ) : (
          <ErrorNotice error={error} />
        )
      ) : (
        <Details view={view} trial={trial} />
      )}
      <DialogButtons>
        {isLive && !isFinal(run) && (
          <Button kind="danger" disabled={refusal !== ""} title={refusal} onClick={() => setStopping(true)}>
            Stop the trial
          </Button>
        )}
        <Button onClick={onClose}>Close</Button>
      </DialogButtons>
    </Dialog>
  );
}

function Details({ view: { study }, trial }: { view: StudyView; trial: Trial }) {
  const steps = trial.steps ?? [];
  const schedule = trial.schedule ?? [];
  return (
    <div class={styles["trial"]}>
      <p>
        <TrialState state={trial.state} /> {study.unit} {trial.epoch} of {trial.budget}
        {trial.best !== null && (
          <>
            , best {study.metric} <strong>{formatNumber(trial.best)}</strong> at {study.unit}{" "}
            {trial.best_epoch}
          </>
        )}
        {trial.run !== null && (
          <>
            {" · "}
            <Link href={`/runs/${encodeURI(trial.run_name ?? trial.run)}`}>
              {trial.run_name ?? trial.run}
            </Link>
          </>
        )}
        {trial.workers.length > 0 && ` · on ${trial.workers.join(", ")}`}
      </p>
      {trial.stop_reason !== null && <p>Stopped: {trial.stop_reason}</p>}
      <Params params={trial.params} />
      {steps.length > 1 && (
        <CurveChart
          title={study.metric}
          series={[
            {
              key: trial.trial,
              label: `trial ${trial.trial}`,
              colour: 0,
              x: Float64Array.from(steps),
              y: Float64Array.from(trial.values ?? []),
            },
          ]}
          xLabel={study.unit}
          height={200}
          hasLegend={false}
          hasValues={false}
        />
      )}
      {schedule.length > 1 && (
        <section>
          <h3>Parameters over its training</h3>
          <ol>
            {schedule.map((entry, index) => (
              <li key={index}>
                from {study.unit} {entry.from_epoch}, trial {entry.trial}
                {entry.copied !== null && `, copied from trial ${entry.copied}`}
                <Params params={entry.params} />
              </li>
            ))}
          </ol>
        </section>
      )}
      {trial.metrics && Object.keys(trial.metrics).length > 1 && (
        <section>
          <h3>Last report</h3>
          <Params params={trial.metrics} />
        </section>
      )}
      {trial.error !== null && (
        <section>
          <h3>Error</h3>
          <pre class={styles["traceback"]} tabIndex={0}>
            {trial.traceback ?? trial.error}
          </pre>
        </section>
      )}
    </div>
  );
}

function Params({ params }: { params: Trial["params"] }) {
  return (
    <dl class={styles["params"]}>
      {Object.entries(params).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{typeof value === "number" ? formatNumber(value) : value === null ? "none" : String(value)}</dd>
        </div>
      ))}
    </dl>
  );
}
