from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.audit import AuditFilter, AuditRecord


class AuditStore(Protocol):
    """Who changed what. Records are added, and go only when they are older than what is kept."""

    async def record(self, entry: AuditRecord, /) -> None:
        """Durable when this returns. Many calls at once share a commit."""
        ...

    async def list(self, where: AuditFilter, /) -> Sequence[AuditRecord]:
        """Newest first."""
        ...

    async def prune(self, before: datetime, /) -> int:
        """Forget what is older; how many records that were."""
        ...
