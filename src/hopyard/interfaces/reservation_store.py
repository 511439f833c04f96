from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopyard.domain.ids import Version
from hopyard.domain.reservation import Reservation


class ReservationStore(Protocol):
    """Granted reservations. Names are unique."""

    async def create(self, reservation: Reservation, /, *, based_on: Version | None = None) -> None:
        """Adds a reservation. Raises Conflict if the name is taken. Also raises Conflict if reservations or
        queues were changed after the snapshot `based_on` on which it was granted; the caller should then
        retry."""

    async def list(self) -> Sequence[Reservation]:
        """Returns reservations by start, then name, including past reservations until they are deleted."""
        ...

    async def get(self, name: str, /) -> Reservation:
        """Returns a reservation. Raises NotFound, with close names as hints."""
        ...

    async def delete(self, name: str, /) -> Reservation:
        """Returns the deleted reservation. Raises NotFound."""
        ...
