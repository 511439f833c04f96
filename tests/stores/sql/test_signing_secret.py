"""The signing secret that earlier versions kept in the database."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import secrets
from hopyard.testing.stores import time_at

DAYS = timedelta(days=1).total_seconds()


def test_signing_secret_of_a_shared_database_is_deleted_after_two_days(url: str) -> None:
    async def scene() -> None:
        database = Database.open(url)
        access = SqlAccessStore(database)
        await database.write(
            lambda conn: conn.execute(secrets.insert().values(name="signing", value=b"s" * 32)).rowcount
        )
        assert await access.signing_secret() == b"s" * 32
        expected = b"s" * 32 if database.dialect == "postgresql" else None
        for days in (0, 1):
            await access.remove_signing_secret(now=time_at(days * DAYS))
            assert await access.signing_secret() == expected
        await access.remove_signing_secret(now=time_at(3 * DAYS))
        assert await access.signing_secret() is None
        assert await database.read(lambda conn: conn.execute(secrets.select()).all()) == []
        await database.close()

    asyncio.run(scene())
