"""What a worker was told to do and has not done yet."""

from __future__ import annotations

import threading
from collections import deque

from hopyard.studies.messages import Doing, End, Evaluate, Open, Train

Order = Open | Train | Evaluate | End


class Inbox:
    """Filled by the link's thread, emptied by the one that trains.
    Units are done in the order in which they came; an `End` overtakes all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._orders: deque[Order] = deque()
        self._current: Order | None = None
        self._cancelled = False
        self._end: End | None = None

    def put(self, order: Order) -> None:
        with self._changed:
            if isinstance(order, End):
                self._end, self._cancelled = order, True
            elif not isinstance(order, Open) and order.unit in self._units():
                return  # told twice
            else:
                self._orders.append(order)
            self._changed.notify_all()

    def next(self) -> Order:
        """Waits for it. It is under way until the next call."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._orders or self._end)
            if self._end is not None:
                return self._end
            self._cancelled = False
            self._current = self._orders.popleft()
            return self._current

    def cancel(self, unit: str) -> bool:
        """Whether it is the one under way. One that has not begun never will."""
        with self._changed:
            for order in [one for one in self._orders if not isinstance(one, Open) and _unit_of(one) == unit]:
                self._orders.remove(order)
            if self._current is not None and _unit_of(self._current) == unit:
                self._cancelled = True
                return True
            return False

    @property
    def is_cancelled(self) -> bool:
        """The one under way."""
        return self._cancelled

    def doing(self) -> tuple[Doing, ...]:
        """Units under way or to come, oldest first."""
        with self._changed:
            orders = [self._current, *self._orders] if not self._cancelled else [*self._orders]
            return tuple(_doing(one) for one in orders if isinstance(one, (Train, Evaluate)))

    def _units(self) -> set[str]:
        return {_unit_of(one) for one in (self._current, *self._orders) if one is not None}


def _unit_of(order: Order) -> str:
    return order.unit if isinstance(order, (Train, Evaluate)) else ""


def _doing(order: Train | Evaluate) -> Doing:
    if isinstance(order, Train):
        partitions = tuple(member.partition for member in order.members)
        return Doing(order.unit, order.trial, order.epoch, partitions, order.state, training=True)
    return Doing(order.unit, order.trial, order.epoch, (order.partition,), order.state, training=False)
