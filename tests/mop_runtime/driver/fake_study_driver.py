"""A driver with a real MopTrainer and a searcher that trains every trial to its budget.

    python -m tests.mop_runtime.driver.fake_study_driver '{"folder": …, "port": 0, "parts": 3,
        "trials": [{"params": {}, "budget": 2}, …], …}'

Writes its port to `folder/port`, its journal to `folder/journal` and its checkpoints to `folder/saved`.
Resumes when it is started again with the same arguments.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.space import Parameter, Space, Uniform
from hopyard.domain.study import BudgetUnit, Goal, MopSpec, Parallel, PartitionPlan, StudySpec
from hopyard.mop_runtime.driver.mop_trainer import MopTrainer
from hopyard.mop_runtime.driver.worker_registry import Timeouts
from hopyard.studies.journal import Journal
from hopyard.studies.trainer import (
    BudgetReached,
    EpochReported,
    RestoredCheckpoint,
    TrainerContext,
    TrialFailed,
    TrialWork,
)
from hopyard.trial_state.shared_memory_store import StateStore


def make_spec(settings: Mapping[str, Any]) -> StudySpec:
    plan = PartitionPlan(settings["parts"], validation=settings.get("validation", 0.2))
    mop = MopSpec(
        settings.get("trainable", "train.py:Model"),
        settings["workers"],
        "toy",
        plan,
        hybrid=settings.get("hybrid", True),
        order=settings.get("order", "free"),
        evaluate_every=settings.get("every", 1),
    )
    return StudySpec(
        "toy",
        Space(tuple(Parameter(name, Uniform(0.0, 1.0)) for name in settings.get("searched", ()))),
        "score",
        Goal.MAX,
        Parallel.MOP,
        concurrent=settings.get("concurrent", 0),
        max_epochs=9,
        seed=7,
        retry_errors=settings.get("retry_errors", 0),
        mop=mop,
        budget_unit=BudgetUnit.STEPS if settings.get("every") else BudgetUnit.EPOCHS,
    )


class CheckpointSaver:
    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder, self.journal, self.step = folder / "saved", journal, 0

    def __call__(self, files: Mapping[str, Path], states: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, path in files.items():
            shutil.copy(path, self.folder / name)
        self.step += 1
        self.journal.write("saved", step=self.step, states=states)


def make_trainer(settings: Mapping[str, Any]) -> tuple[MopTrainer, Journal]:
    folder = Path(settings["folder"])
    journal = Journal(folder / "journal")
    study_fields = {"attempt": settings.get("attempt", 1)}
    journal.write("study", **study_fields)
    files = {path.name: path for path in (folder / "saved").glob("*")} if settings.get("restore") else {}
    context = TrainerContext(
        spec=make_spec(settings),
        journal=journal,
        past_records=[*journal.past_records, {"kind": "study", **study_fields}],
        log_message=lambda text: print(text, file=sys.stderr, flush=True),
        save_checkpoint=CheckpointSaver(folder, journal),
        restored_checkpoint=RestoredCheckpoint(1, files) if files else None,
        dataset_dir=None,
        secret=bytes.fromhex(settings["secret"]),
        listen_address=("127.0.0.1", settings.get("port", 0)),
        is_stopping=lambda: False,
    )
    store = (
        StateStore(settings["store"], Path(settings["disk"]), memory=Path(settings["memory"]))
        if settings.get("memory")
        else StateStore(settings["store"], Path(settings["disk"]))
    )
    return MopTrainer(context, store, folder, timeouts=Timeouts(**settings.get("timeouts", {}))), journal


def main(settings: Mapping[str, Any]) -> None:
    trainer, journal = make_trainer(settings)
    folder = Path(settings["folder"])
    (folder / "port.new").write_text(str(trainer.port))
    (folder / "port.new").rename(folder / "port")
    reported_steps = {str(at): 0 for at in range(len(settings["trials"]))}
    ended, started = set(), set()
    for record in journal.past_records:
        match record["kind"]:
            case "fake-report":
                reported_steps[record["trial"]] = record["step"]
            case "fake-end":
                ended.add(record["trial"])
            case "fake-start":
                started.add(record["trial"])
    waiting = [trial for trial in reported_steps if trial not in ended]
    while len(ended) < len(reported_steps):
        while waiting and (waiting[0] in started or trainer.free_capacity()):
            trial = waiting.pop(0)
            expected = settings["trials"][int(trial)]
            if trial not in started:
                journal.write("fake-start", trial=trial)
            work = TrialWork(
                TrialId(trial),
                expected["params"],
                expected["budget"],
                reported_steps[trial],
                is_resumed=trial in started,
            )
            trainer.start(work)
        trainer.free_capacity()
        for event in trainer.wait(1.0):
            match event:
                case EpochReported(trial, step, metrics):
                    if step > reported_steps[trial]:
                        reported_steps[trial] = step
                        journal.write("fake-report", trial=trial, step=step, metrics=dict(metrics))
                case BudgetReached(trial) | TrialFailed(trial):
                    ended.add(trial)
                    error = event.error if isinstance(event, TrialFailed) else ""
                    journal.write("fake-end", trial=trial, error=error)
                    trainer.end(trial, keep_state=False)
    journal.write("fake-done")
    trainer.close(completed=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
