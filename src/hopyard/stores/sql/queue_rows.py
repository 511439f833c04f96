"""The row of the tree of queues, and the rows of reservations."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from hopyard.domain.queue import SINGLE_QUEUE_TREE, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.stores.sql.codec import decode_reservation, decode_tree, encode_tree
from hopyard.stores.sql.tables import queue_tree, reservations

_SELECT_TREE = select(queue_tree.c.tree)
_SELECT_RESERVATIONS = select(reservations.c.reservation)


def read_tree(conn: Connection) -> QueueTree:
    text = conn.execute(_SELECT_TREE).scalar()
    return SINGLE_QUEUE_TREE if text is None else decode_tree(text)


def write_tree(conn: Connection, tree: QueueTree) -> None:
    if conn.execute(update(queue_tree).values(tree=encode_tree(tree))).rowcount == 0:
        conn.execute(insert(queue_tree).values(id=1, tree=encode_tree(tree)))


def all_reservations(conn: Connection) -> tuple[Reservation, ...]:
    """Returns all reservations by start, then name."""
    stored = [decode_reservation(text) for text in conn.execute(_SELECT_RESERVATIONS).scalars()]
    return tuple(sorted(stored, key=lambda reservation: (reservation.start_at, reservation.name)))
