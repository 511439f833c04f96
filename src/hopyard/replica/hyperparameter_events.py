"""Records the hyperparameters of event files as parameters of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hopyard.replica.event_log import EventLog
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.summary_media import ParamValue

_MAX_PARAMS = 1000
_MAX_NAME_LENGTH = 256
_KINDS = ("params", "scaled")


class HyperparameterEvents:
    """Appends parameters to the stream `events`. The first value of a name counts.

    given: the names of the parameters that the user gave to the run. Neither these nor those that the script
    declares, which are in the same stream, are replaced.
    """

    def __init__(self, folder: ReplicaDir, given: Collection[str]) -> None:
        self._folder = folder
        self._known = set(given)
        self._recorded = 0
        self._events = EventLog(folder.streams / "events")
        self._queue: dict[str, ParamValue] = {}

    def add(self, values: Mapping[str, ParamValue]) -> None:
        """Queues the values of names without a value."""
        for name, value in values.items():
            if 0 < len(name) <= _MAX_NAME_LENGTH and self._recorded + len(self._queue) < _MAX_PARAMS:
                self._queue.setdefault(name, value)

    def write(self) -> None:
        """Appends the queued values. Raises OSError; a later call repeats it."""
        if not self._queue:
            return
        for event in self._events.poll():
            values = event.get("values")
            if event.get("kind") in _KINDS and isinstance(values, dict):
                self._known.update(values)
        values = {name: value for name, value in self._queue.items() if name not in self._known}
        if values:
            self._folder.append_json("events", kind="params", values=values)
            self._known.update(values)
            self._recorded += len(values)
        self._queue.clear()

    @property
    def is_empty(self) -> bool:
        return not self._queue
