"""A command of a user to a live run: pause it, resume it, set parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.param_format import ParamValue
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.errors import Conflict

MAX_COMMANDS = 1000  # of one run
MAX_ANSWER = 4096  # characters
RELEASE = "release"  # the argument of a pause that frees the resources
ParamChange = tuple[ParamValue, ParamValue]  # before and after


class CommandKind(StrEnum):
    PAUSE = "pause"  # wait at the next safe point, and keep the resources
    RESUME = "resume"  # end a pause
    SET = "set"  # change parameters of the script


class CommandState(StrEnum):
    PENDING = "pending"  # not yet applied
    APPLIED = "applied"
    REFUSED = "refused"  # the script cannot apply it


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What the script answers at the safe point where it applies a command.

    step: the completed iterations of its outermost loop; None without a process. changes: the parameters
    before and after, of a `set`.
    """

    state: CommandState
    step: int | None
    answer: str
    at: datetime
    changes: Mapping[str, ParamChange] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """A command as stored. The numbers of a run's commands count from 1, in the order of their application.

    attempt: the attempt that answered. step, answer, answered_at, changes: as in `CommandResult`.
    """

    run: RunId
    number: int
    kind: CommandKind
    arguments: Mapping[str, ParamValue]
    user: str
    created_at: datetime
    state: CommandState = CommandState.PENDING
    attempt: AttemptId | None = None
    step: int | None = None
    answer: str = ""
    answered_at: datetime | None = None
    changes: Mapping[str, ParamChange] = field(default_factory=dict)


def check_new_command(run: str, phase: RunPhase, count: int) -> None:
    """Raises Conflict for a run that has ended, or has too many commands. count: of its commands."""
    if phase.is_final:
        raise Conflict(
            f"run {run} has ended, so it takes no commands",
            hints=(f"run it again with changes: `hop fork {run}`",),
        )
    if count >= MAX_COMMANDS:
        raise Conflict(
            f"run {run} already had {MAX_COMMANDS} commands, the most of one run",
            hints=("stop it, and continue it with `hop resume`",),
        )


def answered_command(command: Command, answer: CommandResult, attempt: AttemptId | None) -> Command:
    """Returns the command with its answer."""
    return replace(
        command,
        state=answer.state,
        attempt=attempt,
        step=answer.step,
        answer=answer.answer,
        answered_at=answer.at,
        changes=dict(answer.changes),
    )


def event_of(command: Command) -> RunEvent:
    """Returns the event of an answered command."""
    return RunEvent(
        command.answered_at or command.created_at, RunEventKind.CONTROL, command_sentence(command)
    )


def is_paused_after(commands: Sequence[Command]) -> bool:
    """Returns whether the run is paused after its applied commands."""
    return _current_pause(commands) is not None


def will_pause(commands: Sequence[Command]) -> bool:
    """Returns whether the script is paused, or pauses at its next safe point, until another command."""
    kinds = [
        command.kind
        for command in commands
        if command.kind is not CommandKind.SET
        and (command.state is CommandState.PENDING or command is _current_pause(commands))
    ]
    return bool(kinds) and kinds[-1] is CommandKind.PAUSE


def is_released(commands: Sequence[Command]) -> bool:
    """Returns whether the last pause that was applied freed the resources of the run."""
    last = _last_applied(commands)
    return last is not None and last.kind is CommandKind.PAUSE and bool(last.arguments.get(RELEASE))


def shown_command(command: Command, phase: RunPhase) -> Command:
    """Returns the command as users see it: a pending one of an ended run is never applied."""
    if command.state is not CommandState.PENDING or not phase.is_final:
        return command
    return replace(
        command, state=CommandState.REFUSED, answer="the run ended before a safe point of its script"
    )


def deliverable(commands: Sequence[Command], attempt: AttemptId) -> list[Command]:
    """Returns the commands that the replicas of an attempt need, in order.

    Those are the pending ones. An attempt of a run that was paused in an earlier attempt also needs that
    pause. It begins with the parameters of applied commands (`params_after`).
    """
    pause = _current_pause(commands)
    return [
        command
        for command in commands
        if command.state is CommandState.PENDING or (command is pause and command.attempt != attempt)
    ]


def params_after(
    params: Mapping[str, ParamValue], commands: Sequence[Command], *, until: datetime | None = None
) -> dict[str, ParamValue]:
    """Returns the parameters with the changes of applied commands. until: only earlier changes, such as those
    before a checkpoint. Both times are of the script's clock; its steps may count something else."""
    values = dict(params)
    for command in commands:
        if command.state is CommandState.APPLIED and (
            until is None or (command.answered_at is not None and command.answered_at < until)
        ):
            values |= {name: after for name, (_, after) in command.changes.items()}
    return values


def command_sentence(command: Command) -> str:
    """Returns the detail of the event of an answered command: user, change and step."""
    at_step = "" if command.step is None else f" at step {command.step}"
    if command.state is CommandState.REFUSED:
        return f"{command.kind} by {command.user} was refused{at_step}: {command.answer}"
    if command.kind is CommandKind.SET:
        changes = ", ".join(
            f"{name} {_text(before)} -> {_text(after)}" for name, (before, after) in command.changes.items()
        )
        return f"{command.user} set {changes}{at_step}"
    word = "paused" if command.kind is CommandKind.PAUSE else "resumed"
    detail = "" if command.step is not None else f": {command.answer}"
    return f"{word} by {command.user}{at_step}{detail}"


def _current_pause(commands: Sequence[Command]) -> Command | None:
    """Returns the command that pauses the script now. A run that was released waits in the queue instead."""
    last = _last_applied(commands)
    if last is None or last.kind is not CommandKind.PAUSE or last.arguments.get(RELEASE):
        return None
    return last


def _last_applied(commands: Sequence[Command]) -> Command | None:
    """Returns the last pause, or end of a pause, that was applied."""
    return next(
        (
            command
            for command in reversed(commands)
            if command.kind is not CommandKind.SET and command.state is CommandState.APPLIED
        ),
        None,
    )


def _text(value: ParamValue) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
