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
_MAX_FAULTS = 5  # faults of the server in a row, before one is raised
T = TypeVar("T")


class StudyApi:
    """replica_dir: of the replica, whose files have the token and the address. is_stopping: whether to stop
    waiting for a server.

    Raises IntegrityError if the folder is not a replica's.
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
        """Returns the answer, however long the server is unavailable or has no space.

        Raises all other errors of the server. Once the driver must exit, raises any error.
        """
        delay_s = _RETRY_DELAYS_S[0]
        while True:
            try:
                answer = request(self._client)
            except HopyardError as error:
                new_client = self._run.client()
                is_new = (new_client.url, new_client.token) != (self._client.url, self._client.token)
                if self._is_stopping() or not self._should_retry(error, is_new):
                    raise
                self._client.close()
                self._client = new_client
                if not is_new:
                    self._log_unavailable(error, delay_s)
                    time.sleep(delay_s)
                    delay_s = min(2 * delay_s, _RETRY_DELAYS_S[1])
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
        """Returns None if the resource does not exist, most likely because it was deleted. Raises as `call`
        does: a resource that may not be read, or is temporarily unavailable, still exists."""
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

    def _log_unavailable(self, error: HopyardError, delay_s: float) -> None:
        if not self._unavailable_since and delay_s >= _RETRY_DELAYS_S[1]:
            self._unavailable_since = True
            self._log_message(f"the study cannot reach its server, and retries: {error.message}")
