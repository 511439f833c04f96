"""Commands of users to live runs, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select, update

from hopyard.domain.command import (
    Command,
    CommandKind,
    CommandResult,
    CommandState,
    answered_command,
    check_new_command,
    event_of,
    is_paused_after,
)
from hopyard.domain.ids import AttemptId, RunId, RunName, split_attempt
from hopyard.domain.param_format import ParamValue
from hopyard.domain.run import RunPhase
from hopyard.errors import NotFound
from hopyard.stores.sql.codec import decode_map, encode_map, from_us, from_us_or_none, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import commands as table
from hopyard.stores.sql.tables import run_events, runs

_FINAL = sorted(str(phase) for phase in RunPhase if phase.is_final)
_PENDING = (
    select(table)
    .join(runs, runs.c.id == table.c.run)
    .where(table.c.state == str(CommandState.PENDING), runs.c.phase.not_in(_FINAL))
    .order_by(table.c.run, table.c.number)
)
_SELECT_RUN = select(
    runs.c.user_name, runs.c.project, runs.c.number, runs.c.phase, runs.c.attempts, runs.c.paused_at
)


class SqlCommandStore:
    """CommandStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_command(
        self,
        run: RunId,
        kind: CommandKind,
        arguments: Mapping[str, ParamValue],
        /,
        *,
        user: str,
        now: datetime,
    ) -> Command:
        def write(conn: Connection) -> Command:
            row = conn.execute(_SELECT_RUN.where(runs.c.id == run)).one_or_none()
            if row is None:
                raise NotFound(f"no run has the id {run}")
            count = len(_commands(conn, run))
            name = RunName(row.user_name, row.project, row.number)
            check_new_command(str(name), RunPhase(row.phase), count)
            command = Command(run, count + 1, kind, dict(arguments), user, now)
            conn.execute(
                table.insert().values(
                    run=run,
                    number=command.number,
                    kind=str(kind),
                    arguments=encode_map(arguments),
                    user_name=user,
                    created_at=to_us(now),
                    state=str(command.state),
                )
            )
            return command

        return await self._database.write(write)

    async def commands(self, run: RunId, /) -> Sequence[Command]:
        return await self._database.read(lambda conn: _commands(conn, run))

    async def pending_commands(self) -> Mapping[RunId, Sequence[Command]]:
        def read(conn: Connection) -> dict[RunId, list[Command]]:
            pending: dict[RunId, list[Command]] = {}
            for row in conn.execute(_PENDING):
                pending.setdefault(RunId(row.run), []).append(_to_command(row))
            return pending

        return await self._database.read(read)

    async def record_command_result(
        self, run: RunId, number: int, answer: CommandResult, /, *, attempt: AttemptId | None
    ) -> Command | None:
        def write(conn: Connection) -> Command | None:
            commands = _commands(conn, run)
            if not 1 <= number <= len(commands):
                return None
            command = commands[number - 1]
            if command.state is CommandState.PENDING:
                command = commands[number - 1] = answered_command(command, answer, attempt)
                _write_answer(conn, command)
            row = conn.execute(_SELECT_RUN.where(runs.c.id == run)).one()
            if attempt is None or row.attempts == split_attempt(attempt)[1]:
                paused_at = (row.paused_at or to_us(answer.at)) if is_paused_after(commands) else None
                if paused_at != row.paused_at:
                    conn.execute(update(runs).where(runs.c.id == run).values(paused_at=paused_at))
            return command

        return await self._database.write(write)


def _write_answer(conn: Connection, command: Command) -> None:
    event = event_of(command)
    conn.execute(
        update(table)
        .where(table.c.run == command.run, table.c.number == command.number)
        .values(
            state=str(command.state),
            attempt=command.attempt,
            step=command.step,
            answer=command.answer,
            answered_at=None if command.answered_at is None else to_us(command.answered_at),
            changes=encode_map({name: list(change) for name, change in command.changes.items()}),
        )
    )
    conn.execute(
        run_events.insert().values(
            run=command.run, at=to_us(event.at), kind=str(event.kind), detail=event.detail
        )
    )


def _commands(conn: Connection, run: RunId) -> list[Command]:
    query = select(table).where(table.c.run == run).order_by(table.c.number)
    return [_to_command(row) for row in conn.execute(query)]


def _to_command(row: Row[Any]) -> Command:
    return Command(
        RunId(row.run),
        row.number,
        CommandKind(row.kind),
        decode_map(row.arguments),
        row.user_name,
        from_us(row.created_at),
        CommandState(row.state),
        None if row.attempt is None else AttemptId(row.attempt),
        row.step,
        row.answer,
        from_us_or_none(row.answered_at),
        {name: (before, after) for name, (before, after) in decode_map(row.changes).items()},
    )
