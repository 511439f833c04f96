"""Several workers that train one state together: after each batch everybody's arrays are averaged.

The first member is where the others connect. It adds what comes in the order of the members, itself included,
divides at the end, and sends everybody the same bits. Whoever goes away ends it for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hopyard.errors import AuthError
from hopyard.studies.link.proof import Unreachable, connect
from hopyard.studies.link.wire import Broken, Wire
from hopyard.studies.trainable.protocol import average
from hopyard.studies.worker.failure import GroupBroken

MEET_S = 600.0  # for the others to come; of a member that is lost, the driver tells long before
_CONNECT_S = 2.0
_SILENCES = 3  # times that a member's host did not answer in that time: they cannot meet


class Meetings:
    """Connections of others that wait for this worker to begin their common unit.
    Filled by threads that accept."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._came: dict[str, dict[int, tuple[Wire, threading.Event]]] = {}
        self._over: set[str] = set()

    def wait_in(self, unit: str, index: int, wire: Wire) -> None:
        """Called by the thread of a connection: returns when the unit is over."""
        left = threading.Event()
        with self._changed:
            if unit in self._over:
                raise Broken("the unit is over")
            self._came.setdefault(unit, {})[index] = wire, left
            self._changed.notify_all()
        left.wait()

    def gather(self, unit: str, count: int) -> list[Wire]:
        """Of members 1 … count - 1, in order. Raises GroupBroken."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: unit in self._over or len(self._came.get(unit, {})) >= count - 1, MEET_S
            ):
                raise GroupBroken(f"only {len(self._came.get(unit, {})) + 1} of {count} members came")
            if unit in self._over:
                raise GroupBroken("the unit was cancelled")
            return [wire for _, (wire, _) in sorted(self._came[unit].items())]

    def end(self, unit: str) -> None:
        """The unit is over, well or badly: its connections are closed."""
        with self._changed:
            self._over.add(unit)
            came = self._came.pop(unit, {})
            self._changed.notify_all()
        for wire, left in came.values():
            wire.close()
            left.set()


class First:
    """The member to whom the others connect."""

    def __init__(self, meetings: Meetings, unit: str, count: int) -> None:
        self._meetings, self._unit, self._count = meetings, unit, count
        self._others: list[Wire] | None = None

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        mine = [_plain(array) for array in arrays]
        if self._others is None:
            self._others = self._meetings.gather(self._unit, self._count)
        try:
            means = average([mine, *(_received(wire, mine) for wire in self._others)])
            for wire in self._others:
                wire.send(_head(means), *_buffers(means))
        except OSError as lost:
            raise GroupBroken(f"a member of the group went away: {lost}") from lost
        return means

    def close(self) -> None:
        self._meetings.end(self._unit)


class Other:
    """Any other member."""

    def __init__(self, address: str, secret: bytes, unit: str, index: int, check: Callable[[], None]) -> None:
        """check: called now and then while the first member does not answer; may raise.
        Raises GroupBroken."""
        until, silences = time.monotonic() + MEET_S, 0
        while True:
            check()
            try:
                self._wire = connect(address, secret, timeout_s=_CONNECT_S)
                break
            except Unreachable as silent:
                silences += 1
                if silences >= _SILENCES:
                    raise GroupBroken(
                        f"the group's first member at {address} cannot be reached: {silent}"
                    ) from silent
            except TimeoutError as slow:
                if time.monotonic() > until:
                    raise GroupBroken(f"the group's first member at {address} does not answer") from slow
            except (OSError, ValueError, AuthError) as refused:
                raise GroupBroken(
                    f"the group's first member at {address} cannot be reached: {refused}"
                ) from refused
        try:
            self._wire.send({"kind": "join", "unit": unit, "index": index})
        except OSError as lost:
            raise GroupBroken(f"the group broke up before it began: {lost}") from lost

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        mine = [_plain(array) for array in arrays]
        try:
            self._wire.send(_head(mine), *_buffers(mine))
            return _received(self._wire, mine)
        except OSError as lost:
            raise GroupBroken(f"the group broke up: {lost}") from lost

    def close(self) -> None:
        self._wire.close()


def _plain(array: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(array)


def _head(arrays: Sequence[Any]) -> dict[str, Any]:
    return {"kind": "arrays", "of": [[array.dtype.str, list(array.shape)] for array in arrays]}


def _buffers(arrays: Sequence[Any]) -> list[memoryview]:
    return [memoryview(array.reshape(-1)).cast("B") for array in arrays if array.size]


def _received(wire: Wire, like: Sequence[Any]) -> list[Any]:
    """Arrays of the same shapes as one's own; others are an error of the user's code that nothing good can
    come of."""
    import numpy

    head, size = wire.receive_head()
    if (
        head.get("kind") != "arrays"
        or head.get("of") != _head(like)["of"]
        or size != sum(array.nbytes for array in like)
    ):
        raise Broken("members of the group came with different arrays: each must make the same steps")
    made = [numpy.empty_like(array) for array in like]
    for buffer in _buffers(made):
        wire.receive_into(buffer)
    return made
