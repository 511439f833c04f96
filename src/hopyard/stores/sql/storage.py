"""The sizes of users' data, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, func, literal, or_, select, union
from sqlalchemy.dialects import postgresql, sqlite

from hopyard.domain.ids import Digest, RunId
from hopyard.interfaces.storage_store import Upload
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import (
    IDS_PER_QUERY,
    checkpoints,
    dataset_versions,
    run_contents,
    run_datasets,
    runs,
    tree_sizes,
)
from hopyard.stores.sql.tables import uploads as table

_SEEN_INTERVAL = timedelta(minutes=30)  # the resolution of the last use of a tree


class SqlStorageStore:
    """StorageStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_tree(self, manifest: Digest, size_bytes: int, /, *, now: datetime) -> None:
        is_tree = tree_sizes.c.manifest == manifest

        def write(conn: Connection) -> None:
            seen_at = conn.execute(select(tree_sizes.c.seen_at).where(is_tree)).scalar()
            if seen_at is None:
                conn.execute(
                    tree_sizes.insert().values(manifest=manifest, size_bytes=size_bytes, seen_at=to_us(now))
                )
            elif seen_at < to_us(now - _SEEN_INTERVAL):
                conn.execute(tree_sizes.update().where(is_tree).values(seen_at=to_us(now)))

        await self._database.write(write, joinable=False)

    async def forget_trees(self, *, before: datetime) -> int:
        # Rows of datasets and checkpoints have their own sizes.
        used_manifests = union(
            *(
                select(column).where(column.is_not(None))
                for column in (run_contents.c.code, run_contents.c.artifact, run_contents.c.run_folder)
            )
        )
        unused = delete(tree_sizes).where(
            tree_sizes.c.seen_at < to_us(before), tree_sizes.c.manifest.not_in(used_manifests)
        )
        return await self._database.write(lambda conn: conn.execute(unused).rowcount)

    async def add_uploads(self, server: str, uploads: Sequence[Upload], /) -> None:
        rows = [
            {
                "server": server,
                "user_name": upload.user,
                "digest": upload.digest,
                "size_bytes": upload.size_bytes,
                "at": to_us(upload.at),
            }
            for upload in uploads
        ]

        def write(conn: Connection) -> None:
            insert = postgresql.insert if conn.dialect.name == "postgresql" else sqlite.insert
            conn.execute(insert(table).on_conflict_do_nothing(), rows)

        if rows:
            await self._database.write(write, joinable=False)

    async def list_uploads(self, server: str, /) -> Sequence[Upload]:
        query = select(table).where(table.c.server == server).order_by(table.c.at, table.c.digest)

        def read(conn: Connection) -> list[Upload]:
            return [
                Upload(row.user_name, Digest(row.digest), row.size_bytes, from_us(row.at))
                for row in conn.execute(query)
            ]

        return await self._database.read(read)

    async def upload_bytes_elsewhere(self, server: str, user: str, /) -> int:
        query = select(func.coalesce(func.sum(table.c.size_bytes), 0)).where(
            table.c.user_name == user, table.c.server != server
        )
        return int(await self._database.read(lambda conn: conn.execute(query).scalar_one()))

    async def remove_uploads(self, server: str, user: str, digests: Sequence[Digest], /) -> None:
        def write(conn: Connection) -> None:
            for start in range(0, len(digests), IDS_PER_QUERY):
                is_removed = table.c.digest.in_(digests[start : start + IDS_PER_QUERY])
                conn.execute(
                    delete(table).where(table.c.server == server, table.c.user_name == user, is_removed)
                )

        await self._database.write(write, joinable=False)

    async def remove_uploads_before(self, server: str, before: datetime, /) -> None:
        old_uploads = delete(table).where(table.c.server == server, table.c.at < to_us(before))
        await self._database.write(lambda conn: conn.execute(old_uploads))

    async def freed_bytes(self, run_ids: Sequence[RunId], /) -> int:
        return await self._database.read(lambda conn: sum(_trees_only_of(conn, run_ids).values()))

    async def stored_bytes(self, user: str, /) -> int:
        run_trees = tree_sizes.join(
            run_contents,
            or_(
                tree_sizes.c.manifest == run_contents.c.code,
                tree_sizes.c.manifest == run_contents.c.artifact,
                tree_sizes.c.manifest == run_contents.c.run_folder,
            ),
        )
        trees = union(
            select(dataset_versions.c.manifest, dataset_versions.c.size_bytes).where(
                dataset_versions.c.created_by == user
            ),
            select(checkpoints.c.manifest, checkpoints.c.size_bytes)
            .join(runs, runs.c.id == checkpoints.c.run)
            .where(runs.c.user_name == user),
            select(tree_sizes.c.manifest, tree_sizes.c.size_bytes)
            .select_from(run_trees.join(runs, runs.c.id == run_contents.c.run))
            .where(runs.c.user_name == user),
        ).subquery()

        def read(conn: Connection) -> int:
            return int(conn.execute(select(func.coalesce(func.sum(trees.c.size_bytes), 0))).scalar_one())

        return await self._database.read(read)


_TREE_COLUMNS = (run_contents.c.code, run_contents.c.artifact, run_contents.c.run_folder)
_USES = (
    *((column, run_contents.c.run) for column in (*_TREE_COLUMNS, run_contents.c.resume_manifest)),
    (checkpoints.c.manifest, checkpoints.c.run),
    (run_datasets.c.manifest, run_datasets.c.run),
    (dataset_versions.c.manifest, literal("")),
)


def _trees_only_of(conn: Connection, run_ids: Sequence[RunId]) -> dict[str, int]:
    """Returns the sizes of the trees that no other run, and no dataset, refers to."""
    sizes: dict[str, int] = {}
    for start in range(0, len(run_ids), IDS_PER_QUERY):
        page = run_ids[start : start + IDS_PER_QUERY]
        saved = select(checkpoints.c.manifest, checkpoints.c.size_bytes).where(checkpoints.c.run.in_(page))
        sizes |= {manifest: size for manifest, size in conn.execute(saved)}
        for column in _TREE_COLUMNS:
            kept = select(tree_sizes.c.manifest, tree_sizes.c.size_bytes).join(
                run_contents, tree_sizes.c.manifest == column
            )
            sizes |= {
                manifest: size for manifest, size in conn.execute(kept.where(run_contents.c.run.in_(page)))
            }
    own, manifests = set(run_ids), sorted(sizes)
    for start in range(0, len(manifests), IDS_PER_QUERY):
        page_of_trees = manifests[start : start + IDS_PER_QUERY]
        for column, run in _USES:
            uses = select(column, run).where(column.in_(page_of_trees)).distinct()
            for manifest, user in conn.execute(uses):
                if user not in own:
                    sizes.pop(manifest, None)
    return sizes
