"""Accepts commands to a live run: pauses it, resumes it, sets parameters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from hopyard.domain.command import (
    RELEASE,
    Command,
    CommandKind,
    CommandResult,
    CommandState,
    check_new_command,
    is_released,
    will_pause,
)
from hopyard.domain.metric_values import encode_param, may_be_number
from hopyard.domain.param_format import ParamValue
from hopyard.domain.run import Run, RunPhase, no_process_conflict
from hopyard.errors import Conflict, SpecError
from hopyard.sdk.live_params import unknown_param_text
from hopyard.sdk.params import convert_override
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_may_change
from hopyard.server.services import Services
from hopyard.server.update_run import RunUpdate, update_run

_MAX_TRIES = 5  # of a pause while the run starts or returns to the queue
_SCRIPT_TIMEOUT_S = 2.0  # in which a replica sends what its script has announced


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

    Raises Forbidden; SpecError for parameters that the script does not declare; Conflict in the wrong phase,
    and before the script has declared its parameters.
    """
    check_may_change(caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner)
    if run.is_being_synced:
        raise no_process_conflict(str(run.name))
    check_new_command(str(run.name), run.phase, 0)
    if run.stop_requested:
        raise Conflict(
            f"run {run.name} is being stopped, so it takes no commands",
            hints=(f"continue it with `hop resume {run.name}` when it has ended",),
        )
    if run.spec.study is not None:
        raise Conflict(
            f"run {run.name} is a study, which has no safe points of its own",
            hints=("give the command to the run of a trial; `hop search ls` lists the studies",),
        )
    user = caller.require_user()
    if kind is CommandKind.SET:
        run = await _await_script(services, run, params)
        _check_safe_points(services, run)  # first: a script that still begins has declared nothing so far
        if not run.params.keys() >= params.keys() and not _has_declared_params(services, run):
            raise _undeclared_error(run, params)
        arguments: Mapping[str, ParamValue] = _checked_params(run, params)
    elif kind is CommandKind.PAUSE:
        if run.phase is RunPhase.QUEUED or release:
            return await _release(services, run, caller, user)
        run = await _await_script(services, run, {})
        _check_safe_points(services, run)
        if run.phase is RunPhase.PAUSED:
            hint = f"continue it with `hop resume {run.name}`, or free its resources with `--release`"
            raise Conflict(f"run {run.name} is paused already", hints=(hint,))
        arguments = {}
    else:
        commands = await services.commands.commands(run.id)
        if is_released(commands) and await services.cluster.withdraw_hold(run.id):
            answer = "it starts again when its resources are free"
            return await _record_applied(services, run, CommandKind.RESUME, {}, user, answer)
        if run.phase is RunPhase.QUEUED and (run.held_by is not None or not will_pause(commands)):
            return await _return_to_queue(services, run, caller, user)
        if not will_pause(commands):
            state = "resumes already" if run.phase is RunPhase.PAUSED else f"is {run.phase.value}, not paused"
            raise Conflict(f"run {run.name} {state}", hints=(f"see its commands with `hop info {run.name}`",))
        arguments = {}
    command = await services.commands.create_command(run.id, kind, arguments, user=user, now=services.now())
    services.pending_commands.invalidate()
    if run.attempt is not None:
        await services.wake(run.attempt.id)
    services.subscriptions.notify_state(run.id)
    return command


async def _release(services: Services, run: Run, caller: Caller, user: str) -> Command:
    """Pauses a run without its resources: it goes back to the queue, and is held there."""
    answer = "held in the queue"
    for _ in range(_MAX_TRIES):
        if run.phase is not RunPhase.QUEUED:
            try:
                await services.controller.preempt(run.id, f"paused by {user}", hold_by=user)
                answer = "its resources are released; it waits in the queue"
                break
            except Conflict:
                run = await services.runs.get(run.id)
                if run.phase is not RunPhase.QUEUED:
                    raise
        if run.held_by is not None:
            raise Conflict(
                f"run {run.name} is held already", hints=(f"continue it with `hop resume {run.name}`",)
            )
        try:
            await update_run(services, run.id, RunUpdate(held=True), caller)
            break
        except Conflict:  # it has just started
            run = await services.runs.get(run.id)
            check_new_command(str(run.name), run.phase, 0)
    else:
        raise Conflict(f"run {run.name} changes its phase all the time", hints=("try again",))
    return await _record_applied(services, run, CommandKind.PAUSE, {RELEASE: True}, user, answer)


async def _return_to_queue(services: Services, run: Run, caller: Caller, user: str) -> Command:
    if run.held_by is None:
        raise Conflict(
            f"run {run.name} is queued and not held", hints=(f"see why it waits: `hop why {run.name}`",)
        )
    await update_run(services, run.id, RunUpdate(held=False), caller)
    return await _record_applied(services, run, CommandKind.RESUME, {}, user, "it waits in the queue")


async def _await_script(services: Services, run: Run, params: Mapping[str, ParamValue]) -> Run:
    """Returns the run when it is known that its script has safe points and these parameters. Gives up after a
    short time: the script may have announced both a moment ago, and its replica is about to send that."""
    loop = asyncio.get_running_loop()
    deadline, is_woken = loop.time() + _SCRIPT_TIMEOUT_S, False
    with services.subscriptions.subscribe(run.id) as subscription:
        while True:
            has_declared = _has_declared_params(services, run)  # first: the run that is read then has them
            if not run.params.keys() >= params.keys():
                await services.ingest.write_received(run.id)
                run = await services.runs.get(run.id)
            is_known = has_declared or run.params.keys() >= params.keys()
            remaining_s = deadline - loop.time()
            is_over = remaining_s <= 0 or subscription.closed or run.phase is not RunPhase.RUNNING
            if is_over or (is_known and not _lacks_safe_points(services, run)):
                return run
            if run.attempt is not None and not is_woken:
                await services.wake(run.attempt.id)
                is_woken = True
            await subscription.wait(min(remaining_s, 0.5))
            run = await services.runs.get(run.id)


def _lacks_safe_points(services: Services, run: Run) -> bool:
    """Returns whether the script runs and is known to have had no safe point so far."""
    if run.phase is not RunPhase.RUNNING or run.attempt is None:
        return False
    return services.ingest.has_safe_points(run.attempt.id, len(run.attempt.nodes)) is False


def _check_safe_points(services: Services, run: Run) -> None:
    """Raises Conflict for a script that runs and has no safe points so far. It may never have one, and the
    command would wait for ever. A script that is not started yet, or continues a pause, is given the time."""
    if not _lacks_safe_points(services, run):
        return
    raise Conflict(
        f"the script of run {run.name} has no safe point so far, so it cannot be paused or changed",
        hints=(
            "its safe points are the iterations of `for epoch in hop.loop(range(epochs)):`, or each hop.log",
            f"free its resources with `hop pause {run.name} --release`, or stop it",
        ),
    )


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


def _has_declared_params(services: Services, run: Run) -> bool:
    """Returns whether the script is known to have declared parameters, beside those that the run got."""
    live = services.ingest.find_live_run(run.id)
    return (live is not None and live.has_params) or bool(run.params.keys() - run.spec.params.keys())


def _undeclared_error(run: Run, params: Mapping[str, ParamValue]) -> Conflict:
    name = next(name for name in params if name not in run.params)
    return Conflict(
        f"the script of run {run.name} has declared no parameters so far, so it has no `{name}` to set",
        hints=(
            f"repeat the command when `hop info {run.name}` lists the parameter",
            "a script declares its parameters with `hop.params`; other ones change with "
            f"`hop fork {run.name} -p NAME=VALUE`",
        ),
    )


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
            known = math.nan if may_be_number(current) else current
            checked[name] = encode_param(convert_override(name, value, known))
        except SpecError as error:
            if may_be_number(current):
                checked[name] = value
                continue
            raise SpecError(error.message.removeprefix("-p "), hints=(f"its value is {current!r}",)) from None
    return checked
