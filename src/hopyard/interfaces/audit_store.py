from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from hopyard.domain.audit import AuditFilter, AuditRecord


class JoinedRecord(Protocol):
    """A record that is stored together with a change. stored_id: its id once both are durable; None
    before."""

    @property
    def stored_id(self) -> int | None: ...


class AuditStore(Protocol):
    """Changes with their users. Records are added, and removed only after the retention time."""

    def record_with_change(self, entry: AuditRecord, /) -> AbstractContextManager[JoinedRecord]:
        """Joins the record to the first change that this task makes in the database within the block.

        Both are one transaction: both become durable, or neither. Nothing is recorded without a change.
        """
        ...

    async def update_record(self, stored_id: int, entry: AuditRecord, /) -> None:
        """Replaces target, outcome and detail of a joined record, which are known only after its change."""
        ...

    async def record(self, entry: AuditRecord, /) -> None:
        """Adds a record, durable on return. Concurrent calls share a commit."""
        ...

    async def list(self, where: AuditFilter, /) -> Sequence[AuditRecord]:
        """Returns the matching records, newest first."""
        ...

    async def prune(self, before: datetime, /) -> int:
        """Removes older records; returns their number."""
        ...
