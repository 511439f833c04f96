from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.usage import Usage


class UsageStore(Protocol):
    """What runs held of the machines. The records outlive their runs."""

    async def usage(self, since: datetime, until: datetime, /, *, now: datetime) -> Sequence[Usage]:
        """What attempts held between these times, a row for each user, queue and project; live attempts until
        `now`."""
        ...
