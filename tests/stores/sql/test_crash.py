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
    result: dict[str, int] = {}
    for accepted in (1, 40, 400):  # each process starts after the last one was killed
        result |= _submit_and_kill(url, accepted)
    database = Database.open(url)
    try:
        stored = asyncio.run(_numbers(database))
        assert result.items() <= stored.items()
        assert sorted(stored.values()) == list(range(1, len(stored) + 1))
        assert asyncio.run(database.read(_count_complete)) == {
            "run_contents": len(stored),
            "run_tags": len(stored),
        }
        if database.dialect == "sqlite":
            assert (
                asyncio.run(database.read(lambda conn: conn.execute(text("PRAGMA integrity_check")).scalar()))
                == "ok"
            )
    finally:
        asyncio.run(database.close())


def _submit_and_kill(url: str, accepted: int) -> dict[str, int]:
    """Kills a submitting process after about `accepted` runs, and returns the accepted ones."""
    command = [sys.executable, "-m", "tests.stores.sql.submitter", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(accepted)]
        process.kill()
        lines += process.stdout.readlines()
    complete = [line.split() for line in lines if line.endswith(b"\n")]
    assert len(complete) >= accepted
    return {run.decode(): int(number) for run, number in complete}


async def _numbers(database: Database) -> dict[str, int]:
    result = await stores_over(database).runs.list(RunFilter(limit=1_000_000))
    return {run.id: run.name.number for run in result}


def _count_complete(conn) -> dict[str, int]:  # type: ignore[no-untyped-def]
    """Returns how many runs have all their rows."""
    both = {
        table.name: select(runs.c.id).join(table, table.c.run == runs.c.id)
        for table in (run_contents, run_tags)
    }
    return {name: len(conn.execute(query).all()) for name, query in both.items()}
