"""The user's end of a console: messages to and from a replica of a live run."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader
from hopyard.errors import NotFound, ServerUnavailable, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def replica_rank(run: api.RunOut, name: str) -> int:
    """Returns the rank of the replica with this name, such as `worker-1`. Raises NotFound."""
    names = [f"{role['name']}-{index}" for role in run["spec"]["roles"] for index in range(role["replicas"])]
    if name not in names:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise NotFound(f"run {run['name']} has no replica `{name}`", hints=(f"its replicas: {shown}",))
    return names.index(name)


def choose_rank(run: api.RunOut, rank: int | None, replica: str | None) -> int:
    """Returns the rank that `--rank` or `--replica` names; 0 without both. Raises SpecError, NotFound."""
    if replica is None:
        return rank or 0
    if rank is not None:
        raise SpecError("--rank and --replica: both name a replica", hints=("give one of them",))
    return replica_rank(run, replica)


class Console:
    """An open console. The connection is blocking; `fileno` is for a selector."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._reader = connection, FrameReader()
        self._received: list[tuple[int, bytes]] = []  # messages that were read ahead
        connection.settimeout(None)

    @classmethod
    def open(cls, client: Client, run: str, request: api.OpenConsoleIn) -> Console:
        """Opens a console of a run. Raises the errors of the server."""
        path = client.create_run_console(run, request)["path"]
        return cls(client.open_tcp(path))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Raises ServerUnavailable when the connection is broken."""
        try:
            self._connection.sendall(frames.frame(kind, payload))
        except OSError as error:
            raise self._broken() from error

    def send_fields(self, kind: int, fields: Mapping[str, Any]) -> None:
        """As `send`, for a message with fields."""
        try:
            self._connection.sendall(frames.json_frame(kind, fields))
        except OSError as error:
            raise self._broken() from error

    def peek_kind(self) -> int:
        """Waits for the next message, and returns its kind. It stays for `take_ahead`."""
        while not self._received:
            self._received += list(self.receive())
        return self._received[0][0]

    def take_ahead(self) -> list[tuple[int, bytes]]:
        """Returns the messages that `peek_kind` has read ahead."""
        ahead, self._received = self._received, []
        return ahead

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Waits for bytes, and yields the messages that are complete now. Raises ServerUnavailable when the
        connection is broken."""
        try:
            data = self._connection.recv(2 * frames.DATA_BYTES)
        except OSError as error:
            raise self._broken() from error
        if not data:
            raise self._broken()
        try:
            yield from self._reader.feed(data)
        except FrameError as error:
            raise self._broken() from error

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    @staticmethod
    def _broken() -> ServerUnavailable:
        return ServerUnavailable(
            "the connection to the run broke; the run continues",
            hints=("see whether the server runs: `hop status`",),
        )
