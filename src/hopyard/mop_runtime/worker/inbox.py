"""The commands that a worker has received and not executed yet."""

from __future__ import annotations

import threading
from collections import deque

from hopyard.mop_runtime.messages import (
    EvaluateUnit,
    MeasureState,
    OpenPartitions,
    Shutdown,
    TrainUnit,
    UnitInProgress,
)

UnitCommand = TrainUnit | EvaluateUnit | MeasureState
WorkerCommand = OpenPartitions | UnitCommand | Shutdown


class Inbox:
    """Filled by the connection's thread, read by the training thread. Units are executed in order of arrival;
    a `Shutdown` overtakes all."""

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
                return  # a repeated message
            else:
                self._commands.append(command)
            self._condition.notify_all()

    def next(self) -> WorkerCommand:
        """Waits for the next command. It is the current one until the next call."""
        with self._condition:
            self._current = None
            self._condition.wait_for(lambda: self._commands or self._shutdown)
            if self._shutdown is not None:
                return self._shutdown
            self._cancelled = False
            self._current = self._commands.popleft()
            return self._current

    def cancel(self, unit: str) -> bool:
        """Returns whether it is the current unit. A unit that has not begun is removed."""
        with self._condition:
            for pending in [
                command
                for command in self._commands
                if not isinstance(command, OpenPartitions) and _unit_id(command) == unit
            ]:
                self._commands.remove(pending)
            if self._current is not None and _unit_id(self._current) == unit:
                self._cancelled = True
                return True
            return False

    @property
    def is_cancelled(self) -> bool:
        """Whether the current unit is cancelled."""
        return self._cancelled

    def units_in_progress(self) -> tuple[UnitInProgress, ...]:
        """Returns the current and pending units, oldest first."""
        with self._condition:
            commands = [self._current, *self._commands] if not self._cancelled else [*self._commands]
            return tuple(_in_progress(command) for command in commands if isinstance(command, UnitCommand))

    def last_open(self) -> OpenPartitions | None:
        """Returns the last request to open partitions that is not finished."""
        with self._condition:
            opens = [
                command for command in (self._current, *self._commands) if isinstance(command, OpenPartitions)
            ]
            return opens[-1] if opens else None

    def _units(self) -> set[str]:
        return {_unit_id(command) for command in (self._current, *self._commands) if command is not None}


def _unit_id(command: WorkerCommand) -> str:
    return command.unit if isinstance(command, UnitCommand) else ""


def _in_progress(command: UnitCommand) -> UnitInProgress:
    if isinstance(command, TrainUnit):
        partitions = tuple(member.partition for member in command.members)
        return UnitInProgress(
            command.unit, command.trial, command.epoch, partitions, command.state, is_training=True
        )
    partitions = () if isinstance(command, MeasureState) else (command.partition,)
    return UnitInProgress(
        command.unit, command.trial, command.epoch, partitions, command.state, is_training=False
    )
