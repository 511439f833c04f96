from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.usage import Usage


class UsageStore(Protocol):
    """The resources that runs held. The records outlive their runs."""

    async def usage(self, since: datetime, until: datetime, /, *, now: datetime) -> Sequence[Usage]:
        """Returns the resources that attempts held between these times, one row per user, queue and project;
        live attempts until `now`."""
        ...
