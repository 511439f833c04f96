"""A driver and workers as processes that can be killed and frozen, and checks of the resulting journal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.mop.report_schedule import ReportSchedule
from hopyard.mop_runtime.driver.journal_index import JournalIndex
from hopyard.mop_runtime.driver.validation_metrics import weighted_means
from hopyard.studies.journal import read_records
from tests.mop_runtime.driver import fake_training

ROOT = Path(__file__).parents[3]
SHORT_TIMEOUTS = {
    "initial_wait_s": 3.0,
    "absent_worker_s": 3.0,
    "reconnect_s": 0.3,
    "heartbeat_s": 1.0,
    "no_worker_s": 20.0,
    "checkpoint_interval_s": 1000.0,
}


class Cluster:
    """trials: pairs of params and budget. With `every`, budgets are in steps, with a report after so many."""

    def __init__(
        self,
        folder: Path,
        trials: list[tuple[dict[str, Any], int]],
        *,
        workers: int = 3,
        parts: int = 3,
        unit_s: float = 0.01,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.workers, self.unit_s, self.size = workers, unit_s, settings.pop("size", 0)
        self.worker = settings.pop("worker", "fake_worker")
        secret = os.urandom(16)
        self.common_settings = {
            "secret": secret.hex(),
            "store": hashlib.blake2b(secret, digest_size=8).hexdigest(),
            "disk": str(folder),
        }
        self.settings = {
            **self.common_settings,
            "folder": str(folder),
            "port": 0,
            "workers": workers,
            "parts": parts,
            "trials": [{"params": params, "budget": budget} for params, budget in trials],
            "timeouts": SHORT_TIMEOUTS,
            **settings,
        }
        self.driver: subprocess.Popen[bytes] | None = None
        self.workers_by_name: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []

    @property
    def schedule(self) -> ReportSchedule:
        parts, every = self.settings["parts"], self.settings.get("every")
        return ReportSchedule(parts, 1 if every else parts, every or 1)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _run(self, module: str, settings: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{module}-{len(self._all)}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.mop_runtime.driver.{module}", json.dumps(settings)],
                cwd=ROOT,
                stderr=log,
            )
        self._all.append(process)
        return process

    def start(self, **overrides: Any) -> Cluster:
        self.start_driver(**overrides)
        for at in range(self.workers):
            self.start_worker(f"w{at}")
        return self

    def start_driver(self, **overrides: Any) -> None:
        """Starts the driver on the same port as before."""
        self.settings.update(overrides)
        self.driver = self._run("fake_study_driver", self.settings)
        self.wait_until((self.folder / "port").exists)
        self.settings["port"] = int((self.folder / "port").read_text())

    def start_worker(self, worker: str, **overrides: Any) -> None:
        settings = {
            **self.common_settings,
            "worker": worker,
            "driver": f"127.0.0.1:{self.settings['port']}",
            "unit_s": self.unit_s,
            "size": self.size,
            **overrides,
        }
        self.workers_by_name[worker] = self._run(
            self.worker, settings | {"study": self.settings} if self.worker != "fake_worker" else settings
        )

    def kill_driver(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()

    def signal(self, worker: str, number: signal.Signals) -> None:
        os.kill(self.workers_by_name[worker].pid, number)

    def records(self) -> list[dict[str, Any]]:
        try:
            return list(read_records((self.folder / "journal").read_bytes()))
        except FileNotFoundError:
            return []

    def records_of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["kind"] == kind]

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "\n".join(["it did not come to that", *self.logs()])
            time.sleep(0.005)  # interval between checks

    def logs(self) -> list[str]:
        return [f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log"))] + [
            json.dumps(record)[:200] for record in self.records()[-20:]
        ]

    def finish(self, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Waits for the end of the study and checks all invariants of its journal."""
        assert self.driver is not None
        self.wait_until(lambda: self.driver is not None and self.driver.poll() is not None, timeout_s)
        assert self.driver.returncode == 0, "\n".join(self.logs())
        records = self.records()
        if self.worker == "fake_worker":
            self.check_journal(records)
        return records

    def check_journal(self, records: list[dict[str, Any]]) -> None:
        parts = self.settings["parts"]
        index = JournalIndex.from_records(records, parts, schedule=self.schedule)
        failed = {record["trial"] for record in records if record["kind"] == "fake-end" and record["error"]}
        hops = {record["state"]: record for record in records if record["kind"] == "hop"}
        assert len(hops) == sum(record["kind"] == "hop" for record in records), "a state is made once"
        report_counts = Counter(
            (record["trial"], record["step"]) for record in records if record["kind"] == "fake-report"
        )
        assert set(report_counts.values()) <= {1}
        for number, trial_settings in enumerate(self.settings["trials"]):
            trial = TrialId(str(number))
            if trial in failed:
                continue
            states = replay_trial_hops(
                index, hops, trial, trial_settings["params"], self.settings.get("seed", 7)
            )
            visits = Counter(
                (epoch, partition) for epoch, partitions in states.visits for partition in partitions
            )
            epochs, extra = self.schedule.split(trial_settings["budget"])
            assert set(visits.values()) == {1}
            assert Counter(epoch for epoch, _ in visits) == Counter(
                dict.fromkeys(range(epochs), parts) | ({epochs: extra} if extra else {})
            )
            for state, history in states.histories.items():
                assert index.digests.get(
                    state, fake_training.digest_of(history, self.size)
                ) == fake_training.digest_of(history, self.size)
            steps = [0]
            while steps[-1] < trial_settings["budget"]:
                steps.append(self.schedule.next_report(steps[-1], trial_settings["budget"]))
            assert [step for name, step in report_counts if name == trial] == steps[1:]
            for step in steps[1:]:
                history = states.histories[states.ends[step]]
                expected = weighted_means(
                    {
                        PartitionId(at): (
                            {"score": fake_training.evaluate(history, at)},
                            fake_training.rows(at),
                        )
                        for at in range(parts)
                    }
                )
                expected["all"] = fake_training.measure(
                    [fake_training.evaluate(history, at) for at in range(parts)]
                )
                (report,) = [
                    record
                    for record in records
                    if record["kind"] == "fake-report" and (record["trial"], record["step"]) == (trial, step)
                ]
                assert report["metrics"] == expected, "the metrics are those of the state after the epoch"

    def count_repeated_visits(self) -> int:
        """Returns the number of visits that are not part of the final states of the trials."""
        return (
            sum(len(hop["partitions"]) for hop in self.records_of_kind("hop"))
            - sum(trial["budget"] for trial in self.settings["trials"]) * self.schedule.unit
        )


class ReplayedTrial:
    def __init__(self) -> None:
        self.visits: list[tuple[int, list[int]]] = []
        self.histories: dict[str, list[str]] = {}
        self.ends: dict[int, str] = {}


def replay_trial_hops(
    index: JournalIndex, hops: Mapping[str, dict[str, Any]], trial: TrialId, params: dict[str, Any], seed: int
) -> ReplayedTrial:
    """Returns the trial, computed again in the order of its hops."""
    out = ReplayedTrial()
    history = fake_training.initial_state(trial, params, seed)
    for name, _ in reversed(list(index.ancestry(index.latest_states[trial]))):
        hop = hops[name]
        history = fake_training.train(history, trial, hop["epoch"], hop["partitions"])
        out.visits.append((hop["epoch"], hop["partitions"]))
        out.histories[name] = history
    out.ends = index.step_states(trial, index.latest_states[trial])
    return out
