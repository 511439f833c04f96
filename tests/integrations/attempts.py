"""Attempts of one run in this process, each with a folder like a replica's, in which callbacks act as under
`hop run`. Frameworks take seconds to import, so they are imported once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopyard.domain.replica import STOP_FILE, StopOrder
from hopyard.sdk import params, safe_points, session
from hopyard.sdk.command_file import CommandFile
from hopyard.sdk.params import Params
from tests.sdk.scripts import read_events, read_points


class Killed(BaseException):
    """Ends an attempt without any notice to the callback."""


class Attempts:
    """The attempts of one run, or of plain `python` if it is offline."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, offline: bool = False) -> None:
        self.root, self._monkeypatch, self._offline = root, monkeypatch, offline
        self.folders: list[Path] = []
        self.run_dir = root / ("code/checkpoints" if offline else "run")

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        """A new attempt begins. Yields the folder of its replica."""
        folder = self.root / f"attempt-{len(self.folders)}"
        (folder / "streams").mkdir(parents=True)
        (self.root / "code").mkdir(exist_ok=True)
        self.folders.append(folder)
        with self._monkeypatch.context() as patch:
            patch.chdir(self.root / "code")
            for name in ("RANK", "WORLD_SIZE", "HOPYARD_RESTORE_DIR", "HOPYARD_GANG_DIR"):
                patch.delenv(name, raising=False)
            variables = {"HOPYARD_OFFLINE_DIR": folder}
            if not self._offline:
                variables = {"HOPYARD_REPLICA_DIR": folder, "HOPYARD_RUN_DIR": self.run_dir}
            for name, value in variables.items():
                patch.setenv(name, str(value))
            patch.setattr(session, "_session", None)
            patch.setattr(params, "recorder", None)  # set with the session; no later test may find it
            # a few batches of so small a model pass between two looks for a stop request
            patch.setattr(safe_points, "_STOP_POLL_INTERVAL_S", 0.0)
            yield folder

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.folders[-1])

    def series(self, name: str) -> dict[int, float]:
        """Returns a metric by step; of a step that two attempts logged, the later value."""
        return {
            point.step: point.value
            for folder in self.folders
            for series, point in read_points(folder)
            if series == name
        }


def preempt(folder: Path) -> None:
    """Requests that the attempt stops at a safe point, as its replica does."""
    scratch = folder / "scratch"
    scratch.write_bytes(msgspec.json.encode(StopOrder.for_preemption(60)))
    scratch.replace(folder / STOP_FILE)


def set_params(folder: Path, **values: float) -> None:
    """Sends the values of `hop set`."""
    CommandFile(str(folder)).append([{"number": 1, "kind": "set", "arguments": values, "user": "alice"}])


def check_attempts(root: Path, monkeypatch: pytest.MonkeyPatch, train: Train, metric: str) -> Attempts:
    """Checks that a training that is preempted and then killed ends as an undisturbed one does.

    train: trains a new model. It calls its argument after each batch with the number of batches of this
    attempt, and returns the weights as numbers. Returns the interrupted attempts.
    """
    whole = Attempts(root / "whole", monkeypatch)
    with whole.attempt():
        expected = train(lambda batches: None)
    broken = Attempts(root / "broken", monkeypatch)
    with broken.attempt() as folder, pytest.raises(SystemExit) as preempted:
        train(lambda batches: preempt(folder) if batches == 4 else None)
    assert preempted.value.code == 75
    assert json.loads((folder / "left.json").read_text())["step"] is not None
    with broken.attempt(), pytest.raises(Killed):
        train(lambda batches: _kill() if batches == 5 else None)
    with broken.attempt():
        assert train(lambda batches: None) == expected
    assert broken.series(metric) == whole.series(metric) and len(whole.series(metric)) > 3
    return broken


def _kill() -> None:
    raise Killed


Train = Callable[[Callable[[int], None]], list[float]]


def declare_lr() -> Params:
    """Declares the parameter that the training uses."""
    return session.current_session().declare_params({"lr": 0.05})


def resume_with_other_rate(root: Path, monkeypatch: pytest.MonkeyPatch, train: Train) -> Attempts:
    """Returns attempts of which the second one continues with another value of the parameter: after a fork,
    or because `hop set` came after the newest checkpoint."""
    attempts = Attempts(root, monkeypatch)
    with attempts.attempt(), pytest.raises(Killed):
        train(lambda batches: _kill() if batches == 5 else None)
    with monkeypatch.context() as patch:
        patch.setenv("HOPYARD_PARAMS", json.dumps({"lr": 0.5}))
        with attempts.attempt():
            train(lambda batches: None)
    return attempts


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
