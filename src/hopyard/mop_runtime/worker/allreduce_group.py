"""A group of workers that train one state together: after each batch their arrays are averaged.

The other members connect to the first one. It adds the arrays in the order of the members, divides at the
end, and sends the same bits to all. If one member disconnects, the unit ends for all.
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

RENDEZVOUS_TIMEOUT_S = 600.0  # for the other members; the driver reports a lost member much earlier
_CONNECT_TIMEOUT_S = 2.0
_MAX_CONNECT_TIMEOUTS = 3  # unanswered attempts after which the member's host counts as unreachable


class GroupRendezvous:
    """Connections of members that wait for this worker to begin their common unit. Filled by accepting
    threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._arrivals: dict[str, dict[int, tuple[FramedConnection, threading.Event]]] = {}
        self._ended_units: set[str] = set()

    def wait_for_end(self, unit: str, index: int, connection: FramedConnection) -> None:
        """Called by the thread of a connection: returns when the unit is over."""
        end_event = threading.Event()
        with self._condition:
            if unit in self._ended_units:
                raise ConnectionBroken("the unit is over")
            self._arrivals.setdefault(unit, {})[index] = connection, end_event
            self._condition.notify_all()
        end_event.wait()

    def gather(self, unit: str, count: int) -> list[FramedConnection]:
        """Returns the connections of members 1 … count - 1, in order. Raises GroupBroken."""
        with self._condition:
            if not self._condition.wait_for(
                lambda: unit in self._ended_units or len(self._arrivals.get(unit, {})) >= count - 1,
                RENDEZVOUS_TIMEOUT_S,
            ):
                raise GroupBroken(f"only {len(self._arrivals.get(unit, {})) + 1} of {count} members came")
            if unit in self._ended_units:
                raise GroupBroken("the unit was cancelled")
            return [connection for _, (connection, _) in sorted(self._arrivals[unit].items())]

    def end_unit(self, unit: str) -> None:
        """The unit is over, successful or not: closes its connections."""
        with self._condition:
            self._ended_units.add(unit)
            arrivals = self._arrivals.pop(unit, {})
            self._condition.notify_all()
        for connection, end_event in arrivals.values():
            connection.close()
            end_event.set()


class GroupLeader:
    """The member to which the others connect."""

    def __init__(self, rendezvous: GroupRendezvous, unit: str, count: int) -> None:
        self._rendezvous, self._unit, self._count = rendezvous, unit, count
        self._member_connections: list[FramedConnection] | None = None

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        own_arrays = [_contiguous(array) for array in arrays]
        if self._member_connections is None:
            self._member_connections = self._rendezvous.gather(self._unit, self._count)
        try:
            means = average(
                [
                    own_arrays,
                    *(_receive_arrays(connection, own_arrays) for connection in self._member_connections),
                ]
            )
            for connection in self._member_connections:
                connection.send(_head(means), *_buffers(means))
        except OSError as error:
            raise GroupBroken(f"a member of the group disconnected: {error}") from error
        return means

    def close(self) -> None:
        self._rendezvous.end_unit(self._unit)


class GroupMember:
    """Any other member."""

    def __init__(
        self, address: str, secret: bytes, unit: str, index: int, check_cancelled: Callable[[], None]
    ) -> None:
        """check_cancelled: called repeatedly while the first member does not answer; may raise. Raises
        GroupBroken."""
        deadline, timeouts = time.monotonic() + RENDEZVOUS_TIMEOUT_S, 0
        while True:
            check_cancelled()
            try:
                self._connection = connect(address, secret, timeout_s=_CONNECT_TIMEOUT_S)
                break
            except HostUnreachable as error:
                timeouts += 1
                if timeouts >= _MAX_CONNECT_TIMEOUTS:
                    raise GroupBroken(
                        f"the group's first member at {address} cannot be reached: {error}"
                    ) from error
            except TimeoutError as error:
                if time.monotonic() > deadline:
                    raise GroupBroken(f"the group's first member at {address} does not answer") from error
            except (OSError, ValueError, AuthError) as error:
                raise GroupBroken(
                    f"the group's first member at {address} cannot be reached: {error}"
                ) from error
        try:
            self._connection.send({"kind": "join", "unit": unit, "index": index})
        except OSError as error:
            raise GroupBroken(f"the group broke up before it began: {error}") from error

    def reduce(self, arrays: Sequence[Any]) -> list[Any]:
        own_arrays = [_contiguous(array) for array in arrays]
        try:
            self._connection.send(_head(own_arrays), *_buffers(own_arrays))
            return _receive_arrays(self._connection, own_arrays)
        except OSError as error:
            raise GroupBroken(f"the group broke up: {error}") from error

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
    """Receives arrays of the same shapes as the expected ones. Other shapes are an error of the
    user's code."""
    import numpy

    head, size = connection.receive_head()
    if (
        head.get("kind") != "arrays"
        or head.get("of") != _head(expected)["of"]
        or size != sum(array.nbytes for array in expected)
    ):
        raise ConnectionBroken("members of the group sent different arrays: each must make the same steps")
    arrays = [numpy.empty_like(array) for array in expected]
    for buffer in _buffers(arrays):
        connection.receive_into(buffer)
    return arrays
