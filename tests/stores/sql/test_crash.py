"""A server that is killed in the middle of its writes has lost nothing that it had accepted."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from sqlalchemy import select, text

from hopyard.interfaces.run_store import RunFilter
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import run_contents, run_tags, runs
from tests.stores.sql.conftest import stores_over


def test_kill_loses_no_accepted_run(url: str) -> None:
    told: dict[str, int] = {}
    for accepted in (1, 40, 400):  # each begins where the one before was killed
        told |= _submit_and_kill(url, accepted)
    database = Database.open(url)
    try:
        found = asyncio.run(_numbers(database))
        assert told.items() <= found.items()
        assert sorted(found.values()) == list(range(1, len(found) + 1))
        assert asyncio.run(database.read(_whole)) == {"run_contents": len(found), "run_tags": len(found)}
        if database.dialect == "sqlite":
            assert (
                asyncio.run(database.read(lambda conn: conn.execute(text("PRAGMA integrity_check")).scalar()))
                == "ok"
            )
    finally:
        asyncio.run(database.close())


def _submit_and_kill(url: str, accepted: int) -> dict[str, int]:
    """What a process was told to be accepted before it was killed, after about `accepted` of them."""
    command = [sys.executable, "-m", "tests.stores.sql.submitter", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(accepted)]
        process.kill()
        lines += process.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith(b"\n")]
    assert len(whole) >= accepted
    return {run.decode(): int(number) for run, number in whole}


async def _numbers(database: Database) -> dict[str, int]:
    found = await stores_over(database).runs.list(RunFilter(limit=1_000_000))
    return {run.id: run.name.number for run in found}


def _whole(conn) -> dict[str, int]:  # type: ignore[no-untyped-def]
    """How many runs have their other rows too."""
    both = {
        table.name: select(runs.c.id).join(table, table.c.run == runs.c.id)
        for table in (run_contents, run_tags)
    }
    return {name: len(conn.execute(query).all()) for name, query in both.items()}
