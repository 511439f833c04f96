"""Commands to live runs: create, list, wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.schemas.fields import MAX_NAMES, Key, RequestModel, Text
from hopyard.domain.command import Command, CommandKind, CommandState, shown_command
from hopyard.domain.ids import RunId
from hopyard.errors import NotFound
from hopyard.server.control_run import accept_command
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

_MAX_WAIT_S = 60.0


class CommandIn(RequestModel):
    """kind: what to do at the next safe point of the script. params: values to set. release: a pause frees
    the resources; the run saves a checkpoint and is held in the queue."""

    kind: CommandKind
    params: Annotated[dict[Key, bool | int | float | Text | None], Meta(max_length=MAX_NAMES)] = (
        msgspec.field(default_factory=dict)
    )
    release: bool = False


class CommandQuery(RequestModel):
    wait: Annotated[
        float, Meta(ge=0, le=_MAX_WAIT_S, description="seconds to wait while the command is pending")
    ] = 0.0


class CommandOut(Struct, frozen=True):
    """A command to a live run. number: counts the commands of the run, in the order of their application.
    state: pending, applied or refused. step: the completed iterations of the script when it applied the
    command. changes: parameters before and after, of a `set`."""

    run: str
    number: int
    kind: CommandKind
    arguments: Mapping[str, bool | int | float | str | None]
    user: str
    created_at: datetime
    state: CommandState
    step: int | None
    answer: str
    answered_at: datetime | None
    changes: Mapping[str, tuple[bool | int | float | str | None, bool | int | float | str | None]]


class CommandsOut(Struct, frozen=True):
    """In the order of their numbers."""

    commands: list[CommandOut]


def command_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def create(request: ApiRequest[Empty, CommandIn]) -> CommandOut:
        """Give a command to a live run: pause it, resume it, or set parameters.

        All processes of a gang apply it at the same iteration of `hop.loop`, once, also after a restart of
        the server or of a replica. 400 for parameters that the script does not declare. 403 as for an update.
        409 in a phase where the command has no meaning.
        """
        body, run = request.body, await services.runs.get(RunId(request.path["id"]))
        command = await accept_command(
            services, run, body.kind, body.params, request.caller, release=body.release
        )
        return to_command_out(command)

    async def list_all(request: ApiRequest[Empty, Empty]) -> CommandsOut:
        """List the commands of a run."""
        run = await services.runs.get(RunId(request.path["id"]))
        commands = await services.commands.commands(run.id)
        return CommandsOut([to_command_out(shown_command(each, run.phase)) for each in commands])

    async def get(request: ApiRequest[CommandQuery, Empty]) -> CommandOut:
        """Get a command. With `wait`, the response comes with the answer, when the run ends, or when the time
        is over."""
        run, number = RunId(request.path["id"]), int(request.path["number"])
        deadline = asyncio.get_running_loop().time() + request.query.wait
        with services.subscriptions.subscribe(run) as subscription:
            while True:
                command = await _find(services, run, number)
                remaining_s = deadline - asyncio.get_running_loop().time()
                if (phase := (await services.runs.get(run)).phase).is_final:
                    # it may have been answered meanwhile
                    return to_command_out(shown_command(await _find(services, run, number), phase))
                if command.state is not CommandState.PENDING or remaining_s <= 0 or subscription.closed:
                    return to_command_out(command)
                await subscription.wait(min(remaining_s, 1.0))

    return [
        Endpoint(
            "POST",
            "/runs/{id}/commands",
            create,
            body=CommandIn,
            returns=CommandOut,
            status=201,
            errors=(400, 409),
            audit="run.command",
        ),
        Endpoint("GET", "/runs/{id}/commands", list_all, returns=CommandsOut),
        Endpoint("GET", "/runs/{id}/commands/{number}", get, CommandQuery, returns=CommandOut),
    ]


async def _find(services: Services, run: RunId, number: int) -> Command:
    commands = await services.commands.commands((await services.runs.get(run)).id)
    if not 1 <= number <= len(commands):
        raise NotFound(f"the run has no command {number}", hints=(f"it has {len(commands)}",))
    return commands[number - 1]


def to_command_out(command: Command) -> CommandOut:
    return CommandOut(
        command.run,
        command.number,
        command.kind,
        command.arguments,
        command.user,
        command.created_at,
        command.state,
        command.step,
        command.answer,
        command.answered_at,
        command.changes,
    )
