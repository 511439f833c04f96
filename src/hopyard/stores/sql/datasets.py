"""Datasets and their versions, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, not_, select, update

from hopyard.domain.dataset import Dataset, DatasetVersion
from hopyard.domain.ids import Digest, check_name
from hopyard.domain.run import RunPhase
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.stores.sql.access import MANIFEST_COLUMNS
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import (
    IDS_PER_QUERY,
    dataset_numbers,
    dataset_versions,
    datasets,
    run_datasets,
    runs,
)

_FINAL_PHASES = sorted(str(phase) for phase in RunPhase if phase.is_final)


class SqlDatasetStore:
    """DatasetStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def push(
        self,
        name: str,
        manifest: Digest,
        /,
        *,
        size_bytes: int,
        files: int,
        user: str,
        message: str,
        now: datetime,
        derived_from: str = "",
    ) -> tuple[DatasetVersion, bool]:
        check_name(name, subject="dataset")

        def write(conn: Connection) -> tuple[DatasetVersion, bool]:
            newest = conn.execute(_select_versions(name).limit(1)).one_or_none()
            if newest is not None and newest.manifest == manifest:
                return _to_version(newest), False
            number = _next_number(conn, name)
            if newest is None and not _exists(conn, name):
                conn.execute(
                    datasets.insert().values(
                        name=name, created_at=to_us(now), metric="", higher_is_better=None
                    )
                )
            version = DatasetVersion(
                name,
                number,
                manifest,
                size_bytes,
                files,
                now,
                user,
                message,
                derived_from=derived_from,
            )
            conn.execute(dataset_versions.insert().values(_version_row(version)))
            return version, True

        return await self._database.write(write)

    async def list(self, *, after: str | None = None, limit: int | None = None) -> Sequence[Dataset]:
        query = select(datasets).order_by(datasets.c.name).limit(limit)
        if after is not None:
            query = query.where(datasets.c.name > after)

        def read(conn: Connection) -> list[Dataset]:
            return _with_newest(conn, conn.execute(query).all())

        return await self._database.read(read)

    async def find(self, name: str, /) -> Dataset | None:
        query = select(datasets).where(datasets.c.name == name)

        def read(conn: Connection) -> Dataset | None:
            return next(iter(_with_newest(conn, conn.execute(query).all())), None)

        return await self._database.read(read)

    async def versions(
        self, name: str, /, *, before: int | None = None, limit: int | None = None
    ) -> Sequence[DatasetVersion]:
        query = _select_versions(name).limit(limit)
        if before is not None:
            query = query.where(dataset_versions.c.number < before)

        def read(conn: Connection) -> Sequence[DatasetVersion]:
            _check_exists(conn, name)
            return [_to_version(row) for row in conn.execute(query)]

        return await self._database.read(read)

    async def version(self, name: str, number: int, /) -> DatasetVersion:
        def read(conn: Connection) -> DatasetVersion:
            query = _select_versions(name).limit(1)
            row = conn.execute(
                query.where(dataset_versions.c.number == number) if number else query
            ).one_or_none()
            if row is None:
                _check_exists(conn, name)
                raise _no_version_error(conn, name, number)
            return _to_version(row)

        return await self._database.read(read)

    async def first_version(self, name: str, /) -> DatasetVersion | None:
        oldest = (
            select(dataset_versions)
            .where(dataset_versions.c.dataset == name)
            .order_by(dataset_versions.c.number)
            .limit(1)
        )

        def read(conn: Connection) -> DatasetVersion | None:
            row = conn.execute(oldest).one_or_none()
            return None if row is None else _to_version(row)

        return await self._database.read(read)

    async def count_runs(self, names: Sequence[str], /) -> Mapping[str, int]:
        query = (
            select(run_datasets.c.dataset, func.count())
            .where(run_datasets.c.dataset.in_(bindparam("b_names", expanding=True)))
            .group_by(run_datasets.c.dataset)
        )

        def read(conn: Connection) -> dict[str, int]:
            counts: dict[str, int] = {}
            for start in range(0, len(names), IDS_PER_QUERY):
                page = list(names[start : start + IDS_PER_QUERY])
                counts |= {row[0]: row[1] for row in conn.execute(query, {"b_names": page})}
            return counts

        return await self._database.read(read)

    async def freed_manifests(self, name: str, number: int | None, /) -> Sequence[Digest]:
        deleted = dataset_versions.c.dataset == name
        if number is not None:
            deleted &= dataset_versions.c.number == number

        def read(conn: Connection) -> list[Digest]:
            _check_exists(conn, name)
            freed = set(conn.execute(select(dataset_versions.c.manifest).where(deleted)).scalars())
            manifests = sorted(freed)
            for start in range(0, len(manifests), IDS_PER_QUERY):
                page = manifests[start : start + IDS_PER_QUERY]
                for column in MANIFEST_COLUMNS:
                    used = select(column).where(column.in_(page)).distinct()
                    if column is dataset_versions.c.manifest:
                        used = used.where(not_(deleted))
                    freed.difference_update(conn.execute(used).scalars())
            return sorted(map(Digest, freed))

        return await self._database.read(read)

    async def set_metric(self, name: str, metric: str, higher_is_better: bool | None, /) -> None:
        def write(conn: Connection) -> None:
            _check_exists(conn, name)
            values = {"metric": metric, "higher_is_better": higher_is_better}
            conn.execute(update(datasets).where(datasets.c.name == name).values(values))

        await self._database.write(write)

    async def set_description(self, name: str, text: str, /, *, base: int | None = None) -> int:
        current = select(datasets.c.description, datasets.c.description_revision).where(
            datasets.c.name == name
        )

        def write(conn: Connection) -> int:
            _check_exists(conn, name)
            stored, revision = tuple(conn.execute(current.with_for_update()).one())
            if stored == text:
                return int(revision)
            if base not in (None, revision):
                raise Conflict(
                    f"the description of `{name}` is at revision {revision}, not {base}",
                    hints=("read it again, and repeat the change",),
                )
            values = {"description": text, "description_revision": revision + 1}
            conn.execute(update(datasets).where(datasets.c.name == name).values(values))
            return int(revision) + 1

        return await self._database.write(write)

    async def delete(self, name: str, number: int | None, /) -> int:
        def write(conn: Connection) -> int:
            _check_exists(conn, name)
            _check_unused(conn, name, number)
            statement = delete(dataset_versions).where(dataset_versions.c.dataset == name)
            if number is None:
                count = conn.execute(statement).rowcount
                conn.execute(delete(datasets).where(datasets.c.name == name))
                return count
            if conn.execute(statement.where(dataset_versions.c.number == number)).rowcount == 0:
                raise _no_version_error(conn, name, number)
            return 1

        return await self._database.write(write)


def _select_versions(name: str) -> Select[Any]:
    """Returns the query for the versions of a dataset, newest first."""
    return (
        select(dataset_versions)
        .where(dataset_versions.c.dataset == name)
        .order_by(dataset_versions.c.number.desc())
    )


def _with_newest(conn: Connection, rows: Sequence[Row[Any]]) -> list[Dataset]:
    """Returns each dataset with the number of its versions and its newest version. Reads the versions of
    these datasets only."""
    counts: dict[str, int] = {}
    newest: dict[str, DatasetVersion] = {}
    newest_numbers = (
        select(
            dataset_versions.c.dataset,
            func.count().label("versions"),
            func.max(dataset_versions.c.number).label("number"),
        )
        .where(dataset_versions.c.dataset.in_(bindparam("b_names", expanding=True)))
        .group_by(dataset_versions.c.dataset)
        .subquery()
    )
    query = select(dataset_versions, newest_numbers.c.versions).join(
        newest_numbers,
        (newest_numbers.c.dataset == dataset_versions.c.dataset)
        & (newest_numbers.c.number == dataset_versions.c.number),
    )
    for start in range(0, len(rows), IDS_PER_QUERY):
        for row in conn.execute(
            query, {"b_names": [row.name for row in rows[start : start + IDS_PER_QUERY]]}
        ):
            counts[row.dataset], newest[row.dataset] = row.versions, _to_version(row)
    return [
        Dataset(
            row.name,
            from_us(row.created_at),
            counts.get(row.name, 0),
            newest.get(row.name),
            row.metric,
            row.higher_is_better,
            description=row.description,
            description_revision=row.description_revision,
        )
        for row in rows
    ]


def _next_number(conn: Connection, name: str) -> int:
    statement = (
        update(dataset_numbers)
        .where(dataset_numbers.c.dataset == name)
        .values(last=dataset_numbers.c.last + 1)
    )
    number = conn.execute(statement.returning(dataset_numbers.c.last)).scalar()
    if number is None:
        conn.execute(dataset_numbers.insert().values(dataset=name, last=1))
        return 1
    return int(number)


def _exists(conn: Connection, name: str) -> bool:
    return conn.execute(select(datasets.c.name).where(datasets.c.name == name)).first() is not None


def _check_exists(conn: Connection, name: str) -> None:
    if _exists(conn, name):
        return
    matches = close_names(name, conn.execute(select(datasets.c.name)).scalars())
    hint = (
        f"did you mean {' or '.join(f'`{match}`' for match in matches)}?"
        if matches
        else "list the datasets with `hop dataset ls`"
    )
    raise NotFound(f"there is no dataset `{name}`", hints=(hint,))


def _no_version_error(conn: Connection, name: str, number: int) -> NotFound:
    newest = conn.execute(_select_versions(name).limit(1)).one_or_none()
    if newest is None:
        return NotFound(
            f"dataset `{name}` has no versions", hints=(f"push one: hop dataset push {name} PATH",)
        )
    return NotFound(f"dataset `{name}` has no version {number}", hints=(f"the newest is {newest.number}",))


def _check_unused(conn: Connection, name: str, number: int | None) -> None:
    query = (
        select(runs.c.user_name, runs.c.project, runs.c.number)
        .join(run_datasets, run_datasets.c.run == runs.c.id)
        .where(run_datasets.c.dataset == name, runs.c.phase.not_in(_FINAL_PHASES), not_(runs.c.offline))
        .limit(1)
    )
    if number is not None:
        query = query.where(run_datasets.c.version.in_((number, 0)))
    if (user := conn.execute(query).one_or_none()) is not None:
        run = f"{user.user_name}/{user.project}/{user.number}"
        raise Conflict(
            f"{run} uses dataset `{name}`", hints=(f"wait for it to end, or stop it: hop stop {run}",)
        )


def _version_row(version: DatasetVersion) -> dict[str, Any]:
    return {
        "dataset": version.dataset,
        "number": version.number,
        "manifest": version.manifest,
        "size_bytes": version.size_bytes,
        "files": version.files,
        "created_at": to_us(version.created_at),
        "created_by": version.created_by,
        "message": version.message,
        "derived_from": version.derived_from,
    }


def _to_version(row: Row[Any]) -> DatasetVersion:
    return DatasetVersion(
        dataset=row.dataset,
        number=row.number,
        manifest=Digest(row.manifest),
        size_bytes=row.size_bytes,
        files=row.files,
        created_at=from_us(row.created_at),
        created_by=row.created_by,
        message=row.message,
        derived_from=row.derived_from,
    )
