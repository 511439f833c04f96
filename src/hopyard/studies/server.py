"""The study's own line to the server: with its run's token, over servers that go away and come back at
another address."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hopyard.errors import (
    AuthError,
    Forbidden,
    HopyardError,
    NotFound,
    ServerFault,
    ServerUnavailable,
    StorageFull,
)
from hopyard.sdk.client import Client
from hopyard.sdk.own_run import read_own_run

_RETRY_S = (0.05, 1.0)
_FAULTS = 5  # of the server, one after another, before they are told
T = TypeVar("T")


class StudyServer:
    """folder: of the replica, which keeps the token and knows the address.
    stopping: whether to give up waiting for a server.

    Raises IntegrityError where the folder is not a replica's.
    """

    def __init__(self, folder: Path, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._run, self._stopping, self._say = read_own_run(folder), stopping, say
        self._client = self._run.client()
        self._away, self._faults = False, 0

    def ask(self, question: Callable[[Client], T]) -> T:
        """The answer, however long the server is away or has no space.
        Raises what else the server says; what it fails with now, once the driver is to leave."""
        pause = _RETRY_S[0]
        while True:
            try:
                answer = question(self._client)
            except HopyardError as failed:
                fresh = self._run.client()
                renewed = (fresh.url, fresh.token) != (self._client.url, self._client.token)
                if self._stopping() or not self._may_pass(failed, renewed):
                    raise
                self._client.close()
                self._client = fresh
                if not renewed:
                    self._tell_away(failed, pause)
                    time.sleep(pause)
                    pause = min(2 * pause, _RETRY_S[1])
            else:
                self._away, self._faults = False, 0
                return answer

    def _may_pass(self, failed: HopyardError, renewed: bool) -> bool:
        """Whether to ask again."""
        if isinstance(failed, ServerFault):
            self._faults += 1
            return self._faults <= _FAULTS
        if isinstance(failed, (ServerUnavailable, StorageFull)):
            return True
        if isinstance(failed, AuthError):
            return renewed and not isinstance(failed, Forbidden)
        return False

    def get(self, path: str, **query: Any) -> Any:
        return self.ask(lambda client: client.get(path, **query))

    def post(self, path: str, body: Any) -> Any:
        return self.ask(lambda client: client.post(path, body))

    def find(self, path: str, **query: Any) -> Any | None:
        """None where there is no such thing, most likely since it was deleted.
        Raises what else `ask` does: what may not be read, or could not be just now, is not gone."""
        try:
            return self.get(path, **query)
        except NotFound:
            return None

    def find_all(self, path: str, rows: str, **query: Any) -> list[Any] | None:
        """All rows of a listing; None where there is no such thing. Raises as `find`."""
        try:
            return self.ask(lambda client: list(client.pages(path, rows, **query)))
        except NotFound:
            return None

    def read(self, path: str, **query: Any) -> bytes:
        def read(client: Client) -> bytes:
            with client.open("GET", path, query=query) as response:
                return response.read()

        return self.ask(read)

    def exchange(self, path: str, body: Any, *, timeout_s: float) -> bytes:
        """POST JSON, get bytes."""

        def send(client: Client) -> bytes:
            with client.open(
                "POST",
                path,
                body=json.dumps(body).encode(),
                content_type="application/json",
                timeout_s=timeout_s,
            ) as response:
                return response.read()

        return self.ask(send)

    def close(self) -> None:
        self._client.close()

    def _tell_away(self, failed: HopyardError, pause: float) -> None:
        if not self._away and pause >= _RETRY_S[1]:
            self._away = True
            self._say(f"the study waits for its server: {failed.message}")
