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
        """The version with this manifest: the newest one if it has it already (False), else a new one (True).
        Two pushes at once give two versions, or one if they are equal. Numbers count from 1 and never come
        again, also where the version or the whole dataset was deleted."""
        ...

    async def list(self, *, after: str | None = None, limit: int | None = None) -> Sequence[Dataset]:
        """Returns datasets by name. after: only names after this name. limit: at most so many."""
        ...

    async def find(self, name: str, /) -> Dataset | None: ...
    async def versions(
        self, name: str, /, *, before: int | None = None, limit: int | None = None
    ) -> Sequence[DatasetVersion]:
        """Newest first. before: only older ones than this number. limit: at most so many of them.
        Raises NotFound (with close names as hints)."""
        ...

    async def version(self, name: str, number: int, /) -> DatasetVersion:
        """Number 0 is the newest. Raises NotFound."""
        ...

    async def first_version(self, name: str, /) -> DatasetVersion | None:
        """The oldest version that was not deleted; None where there is none."""
        ...

    async def set_metric(self, name: str, metric: str, higher_is_better: bool | None, /) -> None: ...
    async def delete(self, name: str, number: int | None, /) -> int:
        """One version, or all with the dataset; how many went.
        Raises NotFound; Conflict while a live run uses it."""
        ...
