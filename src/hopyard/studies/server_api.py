"""The connection of a study to the server, with the token of its run. It survives server restarts and address
changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from hopyard.api_client.client import Client
from hopyard.api_client.run_access import read_run_access
from hopyard.errors import (
    AuthError,
    Forbidden,
    HopyardError,
    NotFound,
    ServerFault,
    ServerUnavailable,
    StorageFull,
)

_RETRY_DELAYS_S = (0.05, 1.0)
_MAX_FAULTS = 5  # of the server, one after another, before they are told
T = TypeVar("T")


class StudyApi:
    """replica_dir: of the replica, which keeps the token and knows the address.
    is_stopping: whether to give up waiting for a server.

    Raises IntegrityError where the folder is not a replica's.
    """

    def __init__(
        self, replica_dir: Path, *, is_stopping: Callable[[], bool], log_message: Callable[[str], None]
    ) -> None:
        self._run, self._is_stopping, self._log_message = (
            read_run_access(replica_dir),
            is_stopping,
            log_message,
        )
        self._client = self._run.client()
        self._unavailable_since, self._faults = False, 0

    def call(self, request: Callable[[Client], T]) -> T:
        """The answer, however long the server is away or has no space.
        Raises what else the server says; what it fails with now, once the driver is to leave."""
        pause = _RETRY_DELAYS_S[0]
        while True:
            try:
                answer = request(self._client)
            except HopyardError as failed:
                fresh = self._run.client()
                renewed = (fresh.url, fresh.token) != (self._client.url, self._client.token)
                if self._is_stopping() or not self._should_retry(failed, renewed):
                    raise
                self._client.close()
                self._client = fresh
                if not renewed:
                    self._log_unavailable(failed, pause)
                    time.sleep(pause)
                    pause = min(2 * pause, _RETRY_DELAYS_S[1])
            else:
                self._unavailable_since, self._faults = False, 0
                return answer

    def _should_retry(self, error: HopyardError, renewed: bool) -> bool:
        """Returns whether to retry the request."""
        if isinstance(error, ServerFault):
            self._faults += 1
            return self._faults <= _MAX_FAULTS
        if isinstance(error, (ServerUnavailable, StorageFull)):
            return True
        if isinstance(error, AuthError):
            return renewed and not isinstance(error, Forbidden)
        return False

    def find(self, request: Callable[[Client], T]) -> T | None:
        """Returns the response; None if the resource does not exist, most likely because it was deleted.

        Raises as `call`: a resource that is forbidden or temporarily unavailable still exists.
        """
        try:
            return self.call(request)
        except NotFound:
            return None

    def get_bytes(self, path: str, **query: str | int | None) -> bytes:
        def read(client: Client) -> bytes:
            with client.open("GET", path, query=query) as response:
                return response.read()

        return self.call(read)

    def post_for_bytes(self, path: str, body: Mapping[str, object], *, timeout_s: float) -> bytes:
        """Posts JSON, and returns bytes."""

        def send(client: Client) -> bytes:
            with client.open(
                "POST",
                path,
                body=json.dumps(body).encode(),
                content_type="application/json",
                timeout_s=timeout_s,
            ) as response:
                return response.read()

        return self.call(send)

    def close(self) -> None:
        self._client.close()

    def _log_unavailable(self, failed: HopyardError, pause: float) -> None:
        if not self._unavailable_since and pause >= _RETRY_DELAYS_S[1]:
            self._unavailable_since = True
            self._log_message(f"the study cannot reach its server, and retries: {failed.message}")
