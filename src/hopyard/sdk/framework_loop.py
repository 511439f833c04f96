"""The training loop of a framework: its batches are safe points, and it saves its own checkpoints.

Standard library only.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from hopyard.sdk.restored_hyperparameters import Settings
from hopyard.sdk.session import Session, current_session
from hopyard.sdk.warn_once import warn_once

RUN_DIR_VARIABLE = "HOPYARD_RUN_DIR"
_OFFLINE_FOLDER = "checkpoints"
_MAX_PARAMS = 1000
_trainings: WeakKeyDictionary[Session, Counter[str]] = WeakKeyDictionary()  # by folder of checkpoints


def checkpoint_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Returns the folder for the checkpoints of a framework.

    By default that is `$HOPYARD_RUN_DIR`, which each attempt of the run gets back; under plain `python`,
    `checkpoints` in the working folder.
    """
    return Path(os.path.abspath(folder or os.environ.get(RUN_DIR_VARIABLE) or _OFFLINE_FOLDER))


def may_resume() -> bool:
    """Returns whether this process may continue from files of an earlier one: under `hop run`, where the
    folder holds the files of this run only. A script under plain `python` begins at the beginning."""
    return bool(os.environ.get(RUN_DIR_VARIABLE))


class FrameworkLoop:
    """One training of a framework.

    library: its name in messages. folder: of its checkpoints; "" for an evaluation without any. The safe
    points begin with `begin` and end with `end`. number: how many trainings of this process have used the
    folder, with this one.
    """

    def __init__(self, library: str, folder: str = "") -> None:
        self._library, self._session = f"{library} callback", current_session()
        self._folder = folder
        counts = _trainings.setdefault(self._session, Counter())
        counts[folder] += bool(folder)
        self.number = counts[folder]

    @property
    def session(self) -> Session:
        return self._session

    def warn_of_shared_folder(self) -> None:
        """Warns about checkpoints of several trainings in one folder: the next attempt would continue each of
        them from the newest of all."""
        if self.number > 1 and may_resume():
            warn_once(
                f"training {self.number} saves to the folder of the first one, {self._folder}: a resumed run "
                "cannot tell them apart; give each training a folder of its own, HopCallback(FOLDER)",
                kind="shared-folder",
            )

    def begin(self, objects: Mapping[str, Any], built: Settings | None = None) -> None:
        """Begins the safe points. objects, built: as in `LiveControl.follow`."""
        self._session.begin_framework_loop()
        tuned = {name: value for name, value in objects.items() if value is not None}
        self._session.control.follow(tuned, built)

    def end(self) -> None:
        """Ends the safe points."""
        self._session.end_framework_loop()

    def reach(self, step: int, *, may_stop: bool = True) -> bool:
        """Applies commands of users, and waits while the run is paused. Returns whether the training must
        save its checkpoint and end.

        may_stop: whether a preemption may end the training here; equal in all processes of a gang. A run that
        is preempted while it is paused ends at any safe point.
        """
        return self._session.reach_batch(step, may_stop=may_stop)

    def exit(self, step: int | None) -> NoReturn:
        """Ends the script. Its run continues in a later attempt. step: of the newest checkpoint."""
        if self._session.group.rank() == 0:
            saved = "nothing could be saved" if step is None else f"the checkpoint of step {step} is saved"
            warn_once(f"preempted: {saved}; this run resumes when there is capacity again", kind="room")
        self._session.exit_framework_loop(step)

    def report_progress(self, done: int, total: int | None, unit: str) -> None:
        """Reports how much of the training is done."""
        if self._session.group.rank() == 0:
            self._session.events.append("progress", done=done, total=total, unit=unit)

    @property
    def follows_event_files(self) -> bool:
        """Whether the run records each event file of TensorBoard that this process writes."""
        return not self._session.offline and "hopyard_startup.reports" in sys.modules

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Logs the numbers among the metrics that no hook of `hop run` has logged."""
        reports = sys.modules.get("hopyard_startup.reports")
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if _is_number(value) and (reports is None or reports.is_claimed(self._library, name))
        }
        if numbers:
            self._session.metrics.write(step, numbers)

    def record_params(self, values: Mapping[str, Any]) -> None:
        """Shows hyperparameters of the framework in the run. Those that the script has declared stay."""
        if self._session.group.rank() != 0:
            return
        scalars = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
            if isinstance(value, (str, bool, int, float)) and name not in self._session.declared
        }
        if scalars:
            self._session.events.append("params", values=dict(list(scalars.items())[:_MAX_PARAMS]))


def _is_number(value: object) -> bool:
    """Returns whether a value is one number: also a tensor of one element."""
    if isinstance(value, (str, bytes)) or value is None:
        return False
    size = getattr(value, "numel", None)
    try:
        if callable(size) and size() != 1:
            return False
        float(value)  # type: ignore[arg-type]  # float() raises for an unsuitable type
    except (TypeError, ValueError):
        return False
    return True
