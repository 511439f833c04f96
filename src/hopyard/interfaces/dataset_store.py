from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.dataset import Dataset, DatasetVersion
from hopyard.domain.ids import Digest


class DatasetStore(Protocol):
    """Datasets by name, and their versions, which never change."""

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
    ) -> tuple[DatasetVersion, bool]:
        """Returns the version with this manifest: the newest one if it has it already (False), else a new one
        (True).

        Two concurrent pushes make two versions, or one if they are equal. Numbers count from 1 and are never
        reused, even after the version or the whole dataset was deleted.
        """
        ...

    async def list(self, *, after: str | None = None, limit: int | None = None) -> Sequence[Dataset]:
        """Returns datasets by name. after: only names after this name. limit: the maximum number."""
        ...

    async def find(self, name: str, /) -> Dataset | None: ...
    async def versions(
        self, name: str, /, *, before: int | None = None, limit: int | None = None
    ) -> Sequence[DatasetVersion]:
        """Returns versions, newest first. before: only versions older than this number. limit: the maximum
        number. Raises NotFound (with close names as hints)."""
        ...

    async def version(self, name: str, number: int, /) -> DatasetVersion:
        """Returns one version; number 0 is the newest. Raises NotFound."""
        ...

    async def first_version(self, name: str, /) -> DatasetVersion | None:
        """Returns the oldest version that was not deleted; None if there is none."""
        ...

    async def set_metric(self, name: str, metric: str, higher_is_better: bool | None, /) -> None: ...
    async def delete(self, name: str, number: int | None, /) -> int:
        """Deletes one version, or the dataset with all versions; returns the number of deleted versions.
        Raises NotFound; Conflict while a live run uses it."""
        ...
