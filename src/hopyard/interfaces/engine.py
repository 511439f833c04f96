from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from hopyard.domain.cluster import Observation
from hopyard.domain.ids import AttemptId
from hopyard.domain.launch import Launch
from hopyard.domain.replica import StopOrder


class Engine(Protocol):
    """Runs gangs. Does not know queues and priorities."""

    @property
    def name(self) -> str: ...

    async def launch(self, launch: Launch, /) -> None:
        """Starts all replicas or none.

        Idempotent on `launch.attempt`, even after a crash of the caller: an attempt that was started is not
        started again until it has ended and is forgotten. Raises LaunchFailed with nothing left.
        """

    async def stop(self, attempt: AttemptId, order: StopOrder, /) -> None:
        """Requests the attempt to end, and kills it after the grace. Returns after the request. An unknown or
        ended attempt is no error. A repeated order is merged with the earlier one (`StopOrder.merged_with`).

        After the order of a preemption, the replicas exit as PREEMPTED. A script with safe points saves a
        checkpoint at its next one and ends, all replicas at the same iteration. It gets SIGTERM only when the
        grace is nearly over. Any other script gets SIGTERM at once. A script that finishes before counts as
        finished. A later order without a safe point takes effect at once.

        The signal of the order replaces SIGTERM. A later order with another signal sends that one, too.
        """

    async def observe(self) -> Observation:
        """Returns the full current state; never a diff, never cached."""
        ...

    async def forget(self, attempt: AttemptId, /) -> None:
        """Removes the traces of an attempt on the nodes, once its end is recorded and its streams are stored.
        An unknown attempt is no error."""


PortStream = tuple[StreamReader, StreamWriter]


@runtime_checkable
class ConnectsPorts(Protocol):
    """An engine that connects to the ports that its runs name."""

    async def connect_port(self, attempt: AttemptId, rank: int, port: int, /) -> PortStream:
        """Returns a connection to the process of this replica that serves a port of the run.

        port: the number that the run names; the engine knows where the replica serves it. Raises
        PortUnreachable when no process of this replica listens there.
        """
        ...


@runtime_checkable
class ConnectsConsoles(Protocol):
    """An engine that connects to the consoles of its replicas."""

    async def connect_console(self, attempt: AttemptId, rank: int, /) -> PortStream:
        """Returns a connection to the program of this replica, for the messages of `domain.console_frames`.

        No other process may be able to make such a connection. Raises ConsoleUnreachable when the script of
        the replica does not run.
        """
        ...


@runtime_checkable
class ReplicaNotifier(Protocol):
    """An engine that can make the replicas of an attempt sync now. Without it they sync with their next
    heartbeat."""

    async def wake(self, attempt: AttemptId, /) -> None:
        """Makes the live replicas sync soon. An unknown or ended attempt is no error."""


@runtime_checkable
class FolderLocator(Protocol):
    """An engine with runs in folders that this process can read."""

    def work_folders(self, attempt: AttemptId, /) -> Mapping[int, Path]:
        """Returns the working folder of each rank that has started on this machine, in order of the ranks."""
        ...
