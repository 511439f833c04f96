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
from hopyard.mop_runtime.transport.framing import ConnectionBroken, FramedConnection
from hopyard.mop_runtime.transport.handshake import HostUnreachable, connect
from hopyard.mop_runtime.worker.unit_failure import GroupBroken
from hopyard.trainables.protocol import average

RENDEZVOUS_TIMEOUT_S = 600.0  # for the others to come; of a member that is lost, the driver tells long before
_CONNECT_TIMEOUT_S = 2.0
_MAX_CONNECT_TIMEOUTS = 3  # times that a member's host did not answer in that time: they cannot meet


class GroupRendezvous:
    """Connections of others that wait for this worker to begin their common unit.
    Filled by threads that accept."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._arrivals: dict[str, dict[int, tuple[FramedConnection, threading.Event]]] = {}
        self._ended_units: set[str] = set()

    def wait_for_end(self, unit: str, index: int, connection: FramedConnection) -> None:
        """Called by the thread of a connection: returns when the unit is over."""
        left = threading.Event()
        with self._condition:
            if unit in self._ended_units:
                raise ConnectionBroken("the unit is over")
            self._arrivals.setdefault(unit, {})[index] = connection, left
            self._condition.notify_all()
        left.wait()

    def gather(self, unit: str, count: int) -> list[FramedConnection]:
        """Of members 1 … count - 1, in order. Raises GroupBroken."""
        with self._condition:
            if not self._condition.wait_for(
                lambda: unit in self._ended_units or len(self._arrivals.get(unit, {})) >= count - 1,
                RENDEZVOUS_TIMEOUT_S,
            ):
                raise GroupBroken(f"only {len(self._arrivals.get(unit, {})) + 1} of {count} members came")
            if unit in self._ended_units:
                raise GroupBroken("the unit was cancelled")
            return [wire for _, (wire, _) in sorted(self._arrivals[unit].items())]

    def end_unit(self, unit: str) -> None:
        """The unit is over, well or badly: its connections are closed."""
        with self._condition:
            self._ended_units.add(unit)
            came = self._arrivals.pop(unit, {})
            self._condition.notify_all()
        for wire, left in came.values():
            wire.close()
            left.set()


class GroupLeader:
    """The member to whom the others connect."""

    def __init__(self, rendezvous: GroupRendezvous, unit: str, count: int) -> None:
        self._rendezvous, self._unit, self._count = rendezvous, unit, count
        self._member_connections: list[FramedConnection] | None = None

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        mine = [_contiguous(array) for array in arrays]
        if self._member_connections is None:
            self._member_connections = self._rendezvous.gather(self._unit, self._count)
        try:
            means = average([mine, *(_receive_arrays(wire, mine) for wire in self._member_connections)])
            for wire in self._member_connections:
                wire.send(_head(means), *_buffers(means))
        except OSError as lost:
            raise GroupBroken(f"a member of the group disconnected: {lost}") from lost
        return means

    def close(self) -> None:
        self._rendezvous.end_unit(self._unit)


class GroupMember:
    """Any other member."""

    def __init__(
        self, address: str, secret: bytes, unit: str, index: int, check_cancelled: Callable[[], None]
    ) -> None:
        """check_cancelled: called now and then while the first member does not answer; may raise.
        Raises GroupBroken."""
        until, silences = time.monotonic() + RENDEZVOUS_TIMEOUT_S, 0
        while True:
            check_cancelled()
            try:
                self._connection = connect(address, secret, timeout_s=_CONNECT_TIMEOUT_S)
                break
            except HostUnreachable as silent:
                silences += 1
                if silences >= _MAX_CONNECT_TIMEOUTS:
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
            self._connection.send({"kind": "join", "unit": unit, "index": index})
        except OSError as lost:
            raise GroupBroken(f"the group broke up before it began: {lost}") from lost

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        mine = [_contiguous(array) for array in arrays]
        try:
            self._connection.send(_head(mine), *_buffers(mine))
            return _receive_arrays(self._connection, mine)
        except OSError as lost:
            raise GroupBroken(f"the group broke up: {lost}") from lost

    def close(self) -> None:
        self._connection.close()


def _contiguous(array: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(array)


def _head(arrays: Sequence[Any]) -> dict[str, Any]:
    return {"kind": "arrays", "of": [[array.dtype.str, list(array.shape)] for array in arrays]}


def _buffers(arrays: Sequence[Any]) -> list[memoryview]:
    return [memoryview(array.reshape(-1)).cast("B") for array in arrays if array.size]


def _receive_arrays(connection: FramedConnection, expected: Sequence[Any]) -> list[Any]:
    """Arrays of the same shapes as one's own; others are an error of the user's code that nothing good can
    come of."""
    import numpy

    head, size = connection.receive_head()
    if (
        head.get("kind") != "arrays"
        or head.get("of") != _head(expected)["of"]
        or size != sum(array.nbytes for array in expected)
    ):
        raise ConnectionBroken(
            "members of the group came with different arrays: each must make the same steps"
        )
    made = [numpy.empty_like(array) for array in expected]
    for buffer in _buffers(made):
        connection.receive_into(buffer)
    return made
