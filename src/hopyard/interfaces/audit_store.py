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
    """Who changed what. Records are added, and go only when they are older than what is kept."""

    def record_with_change(self, entry: AuditRecord, /) -> AbstractContextManager[JoinedRecord]:
        """Within the block, the first change that this task makes in the database and the record are one
        transaction: both become durable, or neither. Nothing is recorded where no change is made."""
        ...

    async def update_record(self, stored_id: int, entry: AuditRecord, /) -> None:
        """Replace what a joined record says of target, outcome and detail, which are known only after its
        change."""
        ...

    async def record(self, entry: AuditRecord, /) -> None:
        """Durable when this returns. Many calls at once share a commit."""
        ...

    async def list(self, where: AuditFilter, /) -> Sequence[AuditRecord]:
        """Newest first."""
        ...

    async def prune(self, before: datetime, /) -> int:
        """Forget what is older; how many records that were."""
        ...
