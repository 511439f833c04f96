"""The replica's line to its server: which may go away, come back at another address, and renew our token."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from hopyard.replica.folder import Folder
from hopyard.sdk.client import Client


class ServerLine:
    """Makes clients for where the server is now. Each thread asks for its own `client()`.

    url, token: what the spec says. server_file: where a later server of the same home writes its address.
    """

    def __init__(self, folder: Folder, *, url: str, token: str, server_file: Path) -> None:
        self._folder, self._server_file = folder, server_file
        self._token = folder.read_token() or token
        self._client = Client(self._read_url() or url, self._token)

    @property
    def client(self) -> Client:
        """For this moment: ask again after a failure."""
        return self._client

    @property
    def url(self) -> str:
        return self._client.url

    def look_again(self) -> bool:
        """After a failure: whether the server has another address now."""
        url = self._read_url()
        if url is None or url.rstrip("/") == self._client.url:
            return False
        self._client = Client(url, self._token)
        return True

    def renew(self, token: str) -> None:
        """Use this token from now on, also in a replica that adopts the folder."""
        self._token = self._client.token = token
        with suppress(OSError):  # a full disk; the one in memory serves this replica
            self._folder.write_token(token)

    def _read_url(self) -> str | None:
        try:
            url = json.loads(self._server_file.read_bytes())["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return url if isinstance(url, str) and url.startswith("http://") else None
