"""Reservations, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from hopyard.domain.ids import Version
from hopyard.domain.reservation import Reservation
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.stores.sql.codec import decode_reservation, encode_reservation
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.queue_rows import all_reservations
from hopyard.stores.sql.tables import reservations
from hopyard.stores.sql.versions import WriteStamp


class SqlReservationStore:
    """ReservationStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, reservation: Reservation, /, *, based_on: Version | None = None) -> None:
        def write(conn: Connection) -> None:
            stamp = WriteStamp(conn)
            if based_on is not None and max(stamp.before.reservations, stamp.before.queues) > based_on:
                raise Conflict(
                    "reservations or queues were changed at the same time",
                    hints=("try again",),
                )
            if _find_reservation(conn, reservation.name) is not None:
                raise Conflict(
                    f"reservation `{reservation.name}` already exists", hints=("choose another name",)
                )
            conn.execute(
                reservations.insert().values(
                    name=reservation.name, reservation=encode_reservation(reservation)
                )
            )
            stamp.touch("reservations")
            stamp.write()

        await self._database.write(write)

    async def list(self) -> Sequence[Reservation]:
        return await self._database.read(all_reservations)

    async def get(self, name: str, /) -> Reservation:
        return await self._database.read(lambda conn: _get_reservation(conn, name))

    async def delete(self, name: str, /) -> Reservation:
        def write(conn: Connection) -> Reservation:
            reservation = _get_reservation(conn, name)
            conn.execute(delete(reservations).where(reservations.c.name == name))
            stamp = WriteStamp(conn)
            stamp.touch("reservations")
            stamp.write()
            return reservation

        return await self._database.write(write)


def _find_reservation(conn: Connection, name: str) -> Reservation | None:
    text = conn.execute(select(reservations.c.reservation).where(reservations.c.name == name)).scalar()
    return None if text is None else decode_reservation(text)


def _get_reservation(conn: Connection, name: str) -> Reservation:
    reservation = _find_reservation(conn, name)
    if reservation is None:
        matches = close_names(name, [stored.name for stored in all_reservations(conn)])
        hints = tuple(f"did you mean `{match}`?" for match in matches) or (
            "list the reservations with `hop reserve ls`",
        )
        raise NotFound(f"there is no reservation `{name}`", hints=hints)
    return reservation
