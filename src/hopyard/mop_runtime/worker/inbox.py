"""What a worker was told to do and has not done yet."""

from __future__ import annotations

import threading
from collections import deque

from hopyard.mop_runtime.messages import EvaluateUnit, OpenPartitions, Shutdown, TrainUnit, UnitInProgress

WorkerCommand = OpenPartitions | TrainUnit | EvaluateUnit | Shutdown


class Inbox:
    """Filled by the link's thread, emptied by the one that trains.
    Units are done in the order in which they came; an `End` overtakes all."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._commands: deque[WorkerCommand] = deque()
        self._current: WorkerCommand | None = None
        self._cancelled = False
        self._shutdown: Shutdown | None = None

    def put(self, command: WorkerCommand) -> None:
        with self._condition:
            if isinstance(command, Shutdown):
                self._shutdown, self._cancelled = command, True
            elif not isinstance(command, OpenPartitions) and command.unit in self._units():
                return  # told twice
            else:
                self._commands.append(command)
            self._condition.notify_all()

    def next(self) -> WorkerCommand:
        """Waits for it. It is under way until the next call."""
        with self._condition:
            self._current = None
            self._condition.wait_for(lambda: self._commands or self._shutdown)
            if self._shutdown is not None:
                return self._shutdown
            self._cancelled = False
            self._current = self._commands.popleft()
            return self._current

    def cancel(self, unit: str) -> bool:
        """Whether it is the one under way. One that has not begun never will."""
        with self._condition:
            for order in [
                one for one in self._commands if not isinstance(one, OpenPartitions) and _unit_id(one) == unit
            ]:
                self._commands.remove(order)
            if self._current is not None and _unit_id(self._current) == unit:
                self._cancelled = True
                return True
            return False

    @property
    def is_cancelled(self) -> bool:
        """The one under way."""
        return self._cancelled

    def units_in_progress(self) -> tuple[UnitInProgress, ...]:
        """Units under way or to come, oldest first."""
        with self._condition:
            orders = [self._current, *self._commands] if not self._cancelled else [*self._commands]
            return tuple(_in_progress(one) for one in orders if isinstance(one, (TrainUnit, EvaluateUnit)))

    def _units(self) -> set[str]:
        return {_unit_id(one) for one in (self._current, *self._commands) if one is not None}


def _unit_id(command: WorkerCommand) -> str:
    return command.unit if isinstance(command, (TrainUnit, EvaluateUnit)) else ""


def _in_progress(command: TrainUnit | EvaluateUnit) -> UnitInProgress:
    if isinstance(command, TrainUnit):
        partitions = tuple(member.partition for member in command.members)
        return UnitInProgress(
            command.unit, command.trial, command.epoch, partitions, command.state, is_training=True
        )
    return UnitInProgress(
        command.unit, command.trial, command.epoch, (command.partition,), command.state, is_training=False
    )
