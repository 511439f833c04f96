"""Opens a console of a run: checks the rights, and returns where it is reached."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel, full_match
from hopyard.domain.ids import RunId
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError
from hopyard.server.console.console_access import OPEN_ACTION, ConsoleAccess
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

MAX_WORDS, MAX_WORD = 4096, 128 * 1024
_SHOWN = 200  # characters of a program in the event of the run
_SIZE = Meta(ge=1, lt=1 << 16)


class ConsoleKind(StrEnum):
    EXEC = "exec"  # a command beside the script
    REPL = "repl"  # statements of Python in the process of the script
    TERMINAL = "terminal"  # the shell of `hop shell`


_ACTIONS = {
    ConsoleKind.REPL: "opened a Python prompt",
    ConsoleKind.TERMINAL: "connected a terminal",
}


class TerminalIn(RequestModel):
    """type: the value of TERM."""

    rows: Annotated[int, _SIZE]
    columns: Annotated[int, _SIZE]
    type: Annotated[str, Meta(max_length=64, pattern=full_match("[ -~]*"))] = ""


class OpenConsoleIn(RequestModel):
    """command: program and arguments of `exec`. rank: of the replica. terminal: of the user; without it,
    standard output and standard error stay apart."""

    kind: ConsoleKind
    command: Annotated[list[Annotated[str, Meta(max_length=MAX_WORD)]], Meta(max_length=MAX_WORDS)] = (
        msgspec.field(default_factory=list)
    )
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)] = 0
    terminal: TerminalIn | None = None


class OpenConsoleOut(Struct, frozen=True):
    """path: a request with `Upgrade: tcp` to it gets the messages of the console, once within a minute. So
    does a WebSocket, by a browser's session as well, with the messages in binary."""

    path: str


def console_endpoints(services: Services, access: ConsoleAccess) -> Sequence[Endpoint[Any, Any]]:
    async def open_console(request: ApiRequest[Empty, OpenConsoleIn]) -> OpenConsoleOut:
        """Open a console of a live run that you submitted, or as the owner of the server: run a command
        beside its script, or evaluate Python in its process. The run has an event with the user and
        the program, without its arguments."""
        body, caller = request.body, request.caller
        run = await services.runs.get(RunId(request.path["id"]))
        action = _ACTIONS.get(body.kind)
        if action is not None:
            body.command.clear()
        elif not body.command or not body.command[0] or any("\0" in word for word in body.command):
            raise SpecError("command: no program is named", hints=("name one: `hop exec RUN -- ls`",))
        attempt = await access.check(run, body.rank, caller)
        terminal = body.terminal
        start = {
            "kind": body.kind.value,
            "command": body.command,
            "user": caller.user,
            "terminal": None
            if terminal is None
            else {"rows": terminal.rows, "columns": terminal.columns, "type": terminal.type},
        }
        # the users of the server see the events of all runs, and arguments may hold a secret
        text = shlex.join(body.command[:1])
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
        at_rank = f" in replica {body.rank}" if run.spec.size > 1 else ""
        sentence = f"{caller.user} {action or f'ran `{shown}`'}{at_rank}"
        return OpenConsoleOut(await access.open(run, attempt, body.rank, start, sentence, caller))

    return [
        Endpoint(
            "POST",
            "/runs/{id}/consoles",
            open_console,
            body=OpenConsoleIn,
            returns=OpenConsoleOut,
            errors=(400, 404, 409),
            audit=OPEN_ACTION,
        )
    ]
