"""Accepts commands to a live run: pauses it, resumes it, sets parameters."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.command import (
    RELEASE,
    Command,
    CommandKind,
    CommandResult,
    CommandState,
    check_new_command,
    is_paused_after,
)
from hopyard.domain.param_format import ParamValue
from hopyard.domain.run import Run, RunPhase, no_process_conflict
from hopyard.errors import Conflict, SpecError
from hopyard.sdk.live_params import unknown_param_text
from hopyard.sdk.params import convert_override
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_may_change
from hopyard.server.services import Services
from hopyard.server.update_run import RunUpdate, update_run


async def accept_command(
    services: Services,
    run: Run,
    kind: CommandKind,
    params: Mapping[str, ParamValue],
    caller: Caller,
    *,
    release: bool,
) -> Command:
    """Records a command, and delivers it. A command that needs no process of the run is applied at once.

    Raises Forbidden; SpecError for parameters that the script does not declare; Conflict in the wrong phase.
    """
    check_may_change(caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner)
    if run.is_being_synced:
        raise no_process_conflict(str(run.name))
    check_new_command(str(run.name), run.phase, 0)
    if run.spec.study is not None:
        raise Conflict(
            f"run {run.name} is a study, which has no safe points of its own",
            hints=("give the command to the run of a trial; `hop search ls` lists the studies",),
        )
    user = caller.require_user()
    if kind is CommandKind.SET:
        arguments: Mapping[str, ParamValue] = _checked_params(run, params)
    elif kind is CommandKind.PAUSE:
        if run.phase is RunPhase.QUEUED or release:
            return await _release(services, run, caller, user)
        if run.phase is RunPhase.PAUSED:
            hint = f"continue it with `hop resume {run.name}`, or free its resources with `--release`"
            raise Conflict(f"run {run.name} is paused already", hints=(hint,))
        arguments = {}
    else:
        if run.phase is RunPhase.QUEUED:
            return await _return_to_queue(services, run, caller, user)
        commands = await services.commands.commands(run.id)
        is_requested = any(
            command.kind is CommandKind.PAUSE and command.state is CommandState.PENDING
            for command in commands
        )
        if run.phase is not RunPhase.PAUSED and not is_requested:
            raise Conflict(
                f"run {run.name} is {run.phase.value}, not paused",
                hints=(f"pause it with `hop pause {run.name}`",),
            )
        arguments = {}
    command = await services.commands.create_command(run.id, kind, arguments, user=user, now=services.now())
    services.pending_commands.invalidate()
    if run.attempt is not None:
        await services.wake(run.attempt.id)
    services.subscriptions.notify_state(run.id)
    return command


async def _release(services: Services, run: Run, caller: Caller, user: str) -> Command:
    """Pauses a run without its resources: it goes back to the queue, and is held there."""
    if run.phase is RunPhase.QUEUED:
        if run.held_by is not None:
            raise Conflict(
                f"run {run.name} is held already", hints=(f"continue it with `hop resume {run.name}`",)
            )
        await update_run(services, run.id, RunUpdate(held=True), caller)
        answer = "held in the queue"
    else:
        await services.commands.hold_live_run(run.id, user)
        await services.controller.preempt(run.id, f"paused by {user}")
        answer = "its resources are released; it waits in the queue"
    return await _record_applied(services, run, CommandKind.PAUSE, {RELEASE: True}, user, answer)


async def _return_to_queue(services: Services, run: Run, caller: Caller, user: str) -> Command:
    is_paused = is_paused_after(await services.commands.commands(run.id))
    if run.held_by is None and not is_paused:
        raise Conflict(
            f"run {run.name} is queued and not held", hints=(f"see why it waits: `hop why {run.name}`",)
        )
    if run.held_by is not None:
        await update_run(services, run.id, RunUpdate(held=False), caller)
    return await _record_applied(services, run, CommandKind.RESUME, {}, user, "it waits in the queue")


async def _record_applied(
    services: Services,
    run: Run,
    kind: CommandKind,
    arguments: Mapping[str, ParamValue],
    user: str,
    answer: str,
) -> Command:
    now = services.now()
    command = await services.commands.create_command(run.id, kind, arguments, user=user, now=now)
    answered = await services.commands.record_command_result(
        run.id, command.number, CommandResult(CommandState.APPLIED, None, answer, now), attempt=None
    )
    services.pending_commands.invalidate()
    services.subscriptions.notify_state(run.id)
    return answered or command


def _checked_params(run: Run, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Returns the values with the types that the run's recorded parameters have."""
    if not params:
        raise SpecError("params: none is given", hints=("name a parameter and its value: `lr=0.01`",))
    checked = {}
    for name, value in params.items():
        if name not in run.params:
            raise SpecError(
                f"run {run.name}: {unknown_param_text(name, list(run.params))}",
                hints=(f"list its parameters with `hop info {run.name}`",),
            )
        current = run.params[name]
        try:
            checked[name] = value if current is None else convert_override(name, value, current)
        except SpecError as error:
            raise SpecError(error.message.removeprefix("-p "), hints=(f"its value is {current!r}",)) from None
    return checked
