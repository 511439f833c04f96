"""The replica's connection to its server, which may stop, return at another address, and renew the replica's
token."""

from __future__ import annotations

from contextlib import suppress

from hopyard.api_client.client import Client
from hopyard.api_client.home_socket import home_client, loopback_port
from hopyard.config.home import Home
from hopyard.errors import HopyardError
from hopyard.replica.replica_dir import ReplicaDir


class ServerConnection:
    """A client of the home's server at its current address.

    Each connection is made to a process that has proven to be that server. No data goes to another program on
    the server's last port, and acknowledgements of such a program are ignored (see `api_client.home_socket`).

    url, token: from the spec; the url is passed to scripts.
    """

    def __init__(self, folder: ReplicaDir, *, url: str, token: str, home: Home) -> None:
        self._folder, self._home = folder, home
        self._token = folder.read_token() or token
        self._client = home_client(home, self._token, url=self._read_url() or url)

    @property
    def client(self) -> Client:
        """The current client. Read it again after a failure."""
        return self._client

    @property
    def url(self) -> str:
        return self._client.url

    def rediscover(self) -> bool:
        """After a failure: returns whether the server has another address now."""
        url = self._read_url()
        if url is None or url == self._client.url:
            return False
        self._client = home_client(self._home, self._token, url=url)
        return True

    def renew_token(self, token: str) -> None:
        """Uses this token from now on, also in a replica that adopts the folder."""
        self._token = self._client.token = token
        with suppress(OSError):  # a full disk: the token in memory is enough for this replica
            self._folder.write_token(token)

    def _read_url(self) -> str | None:
        with suppress(HopyardError):
            url = str((self._home.read_server() or {}).get("url", "")).rstrip("/")
            return url if loopback_port(url) else None
        return None
