"""What users store, in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, func, or_, select, union

from hopyard.domain.ids import Digest
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import checkpoints, dataset_versions, run_contents, runs, tree_sizes


class SqlStorageStore:
    """StorageStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_tree(self, manifest: Digest, size_bytes: int, /) -> None:
        def write(conn: Connection) -> None:
            if conn.execute(select(tree_sizes.c.manifest).where(tree_sizes.c.manifest == manifest)).scalar() is None:
                conn.execute(tree_sizes.insert().values(manifest=manifest, size_bytes=size_bytes))

        await self._database.write(write)

    async def stored_bytes(self, user: str, /) -> int:
        of_run = tree_sizes.join(run_contents, or_(tree_sizes.c.manifest == run_contents.c.code, tree_sizes.c.manifest == run_contents.c.artifact))
        trees = union(
            select(dataset_versions.c.manifest, dataset_versions.c.size_bytes).where(dataset_versions.c.created_by == user),
            select(checkpoints.c.manifest, checkpoints.c.size_bytes).join(runs, runs.c.id == checkpoints.c.run).where(runs.c.user_name == user),
            select(tree_sizes.c.manifest, tree_sizes.c.size_bytes)
            .select_from(of_run.join(runs, runs.c.id == run_contents.c.run))
            .where(runs.c.user_name == user),
        ).subquery()

        def read(conn: Connection) -> int:
            return int(conn.execute(select(func.coalesce(func.sum(trees.c.size_bytes), 0))).scalar_one())

        return await self._database.read(read)
