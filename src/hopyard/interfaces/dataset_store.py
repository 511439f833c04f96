from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        derived_from: str = "",
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

    async def count_runs(self, names: Sequence[str], /) -> Mapping[str, int]:
        """Returns the number of runs that use each of these datasets; datasets without runs are absent."""
        ...

    async def freed_manifests(self, name: str, number: int | None, /) -> Sequence[Digest]:
        """Returns the manifests that the deletion of one version, or of all, leaves without a reference: no
        run and no other version has them. Raises NotFound for an unknown dataset."""
        ...

    async def set_metric(self, name: str, metric: str, higher_is_better: bool | None, /) -> None: ...
    async def set_description(self, name: str, text: str, /, *, base: int | None = None) -> int:
        """Stores the description of a dataset, and returns its revision.

        base: the revision that it replaces; None for any. A text that is stored already changes nothing.
        Raises NotFound; Conflict for another revision.
        """
        ...

    async def delete(self, name: str, number: int | None, /) -> int:
        """Deletes one version, or the dataset with all versions; returns the number of deleted versions.
        Raises NotFound; Conflict while a live run uses it."""
        ...
