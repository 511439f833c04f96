"""A driver with a real Hopper and a searcher that wants every trial trained to its budget.

    python -m tests.mop_runtime.driver.fake_study_driver '{"folder": …, "port": 0, "parts": 3,
        "trials": [{"params": {}, "budget": 2}, …], …}'

It writes its port to `folder/port`, its journal to `folder/journal`, and what it saved to `folder/saved`.
Killed and started again with the same words it goes on.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.space import Space
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, StudySpec
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


def spec_of(said: Mapping[str, Any]) -> StudySpec:
    plan = PartitionPlan(said["parts"], validation=said.get("validation", 0.2))
    mop = MopSpec(
        said.get("trainable", "train.py:Model"), said["workers"], "toy", plan, hybrid=said.get("hybrid", True)
    )
    return StudySpec(
        "toy",
        Space(()),
        "score",
        Goal.MAX,
        Parallel.MOP,
        concurrent=said.get("concurrent", 0),
        max_epochs=9,
        seed=7,
        mop=mop,
    )


class Save:
    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder, self.journal, self.step = folder / "saved", journal, 0

    def __call__(self, files: Mapping[str, Path], states: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, path in files.items():
            shutil.copy(path, self.folder / name)
        self.step += 1
        self.journal.write("saved", step=self.step, states=states)


def make(said: Mapping[str, Any]) -> tuple[MopTrainer, Journal]:
    folder = Path(said["folder"])
    journal = Journal(folder / "journal")
    begun = {"attempt": said.get("attempt", 1)}
    journal.write("study", **begun)
    files = {path.name: path for path in (folder / "saved").glob("*")} if said.get("restore") else {}
    ground = TrainerContext(
        spec=spec_of(said),
        journal=journal,
        past_records=[*journal.past_records, {"kind": "study", **begun}],
        log_message=lambda text: print(text, file=sys.stderr, flush=True),
        save_checkpoint=Save(folder, journal),
        restored_checkpoint=RestoredCheckpoint(1, files) if files else None,
        dataset_dir=None,
        secret=bytes.fromhex(said["secret"]),
        listen_address=("127.0.0.1", said.get("port", 0)),
        is_stopping=lambda: False,
    )
    shelf = (
        StateStore(said["shelf"], Path(said["disk"]), memory=Path(said["memory"]))
        if said.get("memory")
        else StateStore(said["shelf"], Path(said["disk"]))
    )
    return MopTrainer(ground, shelf, folder, timeouts=Timeouts(**said.get("patience", {}))), journal


def main(said: Mapping[str, Any]) -> None:
    hopper, journal = make(said)
    folder = Path(said["folder"])
    (folder / "port.new").write_text(str(hopper.port))
    (folder / "port.new").rename(folder / "port")
    told = {str(at): 0 for at in range(len(said["trials"]))}
    over, began = set(), set()
    for record in journal.past_records:
        match record["kind"]:
            case "fake-report":
                told[record["trial"]] = record["step"]
            case "fake-end":
                over.add(record["trial"])
            case "fake-start":
                began.add(record["trial"])
    waiting = [trial for trial in told if trial not in over]
    while len(over) < len(told):
        while waiting and (waiting[0] in began or hopper.free_capacity()):
            trial = waiting.pop(0)
            wanted = said["trials"][int(trial)]
            if trial not in began:
                journal.write("fake-start", trial=trial)
            work = TrialWork(
                TrialId(trial), wanted["params"], wanted["budget"], told[trial], is_resumed=trial in began
            )
            hopper.start(work)
        hopper.free_capacity()
        for news in hopper.wait(1.0):
            match news:
                case EpochReported(trial, step, metrics):
                    if step > told[trial]:
                        told[trial] = step
                        journal.write("fake-report", trial=trial, step=step, metrics=dict(metrics))
                case BudgetReached(trial) | TrialFailed(trial):
                    over.add(trial)
                    error = news.error if isinstance(news, TrialFailed) else ""
                    journal.write("fake-end", trial=trial, error=error)
                    hopper.end(trial, keep_state=False)
    journal.write("fake-done")
    hopper.close(completed=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
