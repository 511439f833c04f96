"""A process that submits runs until it is killed, and prints the accepted ones.

Arguments: the database URL.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime

from hopyard.domain.ids import new_run_id
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.stores import new_run


async def main(url: str) -> None:
    runs = SqlRunStore(Database.open(url))

    async def submit() -> None:
        while True:
            now = datetime.now(UTC)
            (run,) = await runs.create(
                [new_run(id=new_run_id(now, os.urandom(16)), tags={"k": "v"})], now=now
            )
            os.write(1, f"{run.id} {run.name.number}\n".encode())

    await asyncio.gather(*(submit() for _ in range(16)))


asyncio.run(main(sys.argv[1]))
