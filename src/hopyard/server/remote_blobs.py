"""Blobs that lie with another server of the same database: found there, and fetched when they are needed
here."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from urllib.parse import urlsplit

from hopyard.config.identity import NONCE_BYTES
from hopyard.domain.cluster import KnownServer
from hopyard.domain.ids import Digest
from hopyard.errors import BlobsElsewhere, HopyardError, MissingBlobs, StorageFull
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.sdk.client import API, Client
from hopyard.sdk.wire import Connection
from hopyard.server.server_tokens import server_proof, server_token
from hopyard.server.servers import Servers

TIMEOUT_S = 20.0
DIAL_S = 3.0
NOT_AGAIN_S = 5.0  # that a server which did not answer is not asked again
_ASK_DIGESTS = 20_000
_FETCH_DIGESTS, _BATCH_BYTES = 500, 8 * 1024 * 1024
_ANSWER_BYTES = 4096
_HINT = "start that server again; or `hop node rm` its node, if it is gone for good"
log = logging.getLogger("hopyard.server")


@dataclass(frozen=True, slots=True)
class Search:
    """lacking: blobs that no server has that could be asked. unasked: the others, in words."""

    lacking: Sequence[Digest]
    unasked: Sequence[str] = ()

    def check_elsewhere(self) -> None:
        """Raises BlobsElsewhere where a server that could not be asked may have what is lacking."""
        if self.lacking and self.unasked:
            count = len(self.lacking)
            what = "a blob is" if count == 1 else f"{count} blobs are"
            there = "it lies" if count == 1 else "they lie"
            raise BlobsElsewhere(
                f"{what} not with this server; {there} with {', or with '.join(self.unasked)}", hints=(_HINT,)
            )

    def check(self, what: str, *, hints: Sequence[str]) -> None:
        """Raises BlobsElsewhere, or MissingBlobs where no server has what is lacking."""
        self.check_elsewhere()
        if self.lacking:
            raise MissingBlobs(
                f"{len(self.lacking)} of the {what} are not on the server", digests=self.lacking, hints=hints
            )


class RemoteBlobs:
    """blobs: those of this server. engine: this server's own.
    machine: the name of the machine that it runs on."""

    def __init__(
        self, cluster: ClusterStore, blobs: Blobs, *, engine: str, machine: str, now: Callable[[], datetime]
    ) -> None:
        self._cluster, self._blobs, self._engine, self._machine, self._now = (
            cluster,
            blobs,
            engine,
            machine,
            now,
        )
        # engines of servers that did not answer -> when, by the monotonic clock
        self._silent: dict[str, float] = {}

    async def find(self, digests: Iterable[Digest]) -> Search:
        """Those of the blobs that neither this server nor another one has."""
        return await self._search(digests, self._missing_at)

    async def bring(self, digests: Iterable[Digest]) -> Search:
        """Fetch those of the blobs that are not here. Raises StorageFull."""
        return await self._search(digests, self._fetch_from)

    async def _search(
        self,
        digests: Iterable[Digest],
        ask: Callable[[KnownServer, list[Digest]], asyncio.Future[list[Digest]]],
    ) -> Search:
        lacking = list(await self._blobs.missing(digests))
        if not lacking:
            return Search(())
        servers = await Servers.get(self._cluster, now=self._now())
        unasked: list[str] = []
        for engine, server in servers.known.items():
            if engine == self._engine or not lacking:
                continue
            absence = self._absence(servers, server)
            if not absence:
                try:
                    lacking = await ask(server, lacking)
                    continue
                except StorageFull:
                    raise
                except (HopyardError, OSError) as failed:
                    log.warning("the server %s was asked for blobs in vain: %s", server.place, failed)
                    self._silent[engine] = time.monotonic()
                    absence = f"which does not answer at {server.url}"
            nodes = [str(node.id) for node in await self._cluster.nodes() if node.engine == engine]
            unasked.append(f"{servers.name(engine, nodes)}, {absence}")
        return Search(lacking, unasked)

    def _absence(self, servers: Servers, server: KnownServer) -> str:
        """Why a server cannot be asked; "" where it can."""
        since = servers.away_since(server.engine)
        if since is not None:
            return servers.absence(since)
        if not server.url or not server.key:
            return "which is of an earlier version"
        if server.place.partition(":")[0] != self._machine and _is_loopback(server.url):
            return (
                f"which other machines cannot reach: set `server: {{url: …}}` in its settings (it says "
                f"{server.url})"
            )
        if time.monotonic() - self._silent.get(server.engine, float("-inf")) < NOT_AGAIN_S:
            return f"which does not answer at {server.url}"
        return ""

    def _missing_at(self, server: KnownServer, digests: list[Digest]) -> asyncio.Future[list[Digest]]:
        return asyncio.ensure_future(asyncio.to_thread(_missing, self._client(server), digests))

    def _fetch_from(self, server: KnownServer, digests: list[Digest]) -> asyncio.Future[list[Digest]]:
        return asyncio.ensure_future(self._fetch(server, digests))

    async def _fetch(self, server: KnownServer, digests: list[Digest]) -> list[Digest]:
        loop = asyncio.get_running_loop()

        def put(blobs: Sequence[tuple[Digest, bytes]]) -> None:
            asyncio.run_coroutine_threadsafe(self._blobs.put_many(blobs), loop).result()

        await asyncio.to_thread(_fetch, self._client(server), digests, put)
        return list(await self._blobs.missing(digests))

    def _client(self, server: KnownServer) -> Client:
        token = server_token(server.key, sender=self._engine, now=self._now())
        return Client(server.url, token, timeout_s=TIMEOUT_S, dial=partial(_dial, server))


def _missing(client: Client, digests: Sequence[Digest]) -> list[Digest]:
    try:
        found: list[Digest] = []
        for at in range(0, len(digests), _ASK_DIGESTS):
            found += map(Digest, client.missing(digests[at : at + _ASK_DIGESTS]))
        return found
    finally:
        client.close()


def _fetch(
    client: Client, digests: Sequence[Digest], put: Callable[[Sequence[tuple[Digest, bytes]]], None]
) -> None:
    """What the server of this client has of the blobs, in batches. `put` checks them."""
    lacking = set(_missing(client, digests))
    wanted, batch, size = (
        [digest for digest in digests if digest not in lacking],
        list[tuple[Digest, bytes]](),
        0,
    )
    try:
        for at in range(0, len(wanted), _FETCH_DIGESTS):
            for digest, data in client.fetch(wanted[at], wanted[at : at + _FETCH_DIGESTS]):
                batch.append((Digest(digest), data))
                size += len(data)
                if size >= _BATCH_BYTES:
                    put(batch)
                    batch, size = [], 0
        if batch:
            put(batch)
    finally:
        client.close()


def _dial(server: KnownServer, timeout_s: float) -> socket.socket:
    """A connection to the server, once the other end has proven that it knows the server's key.
    Raises OSError."""
    split = urlsplit(server.url)
    host, port = split.hostname or "", split.port or 80
    sock = socket.create_connection((host, port), min(timeout_s, DIAL_S))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not _proves(sock, split.netloc, server.key):
            raise ConnectionRefusedError(f"another program answers at {server.url}")
        sock.settimeout(timeout_s)
    except BaseException:
        sock.close()
        raise
    return sock


def _proves(sock: socket.socket, authority: str, key: str) -> bool:
    nonce = os.urandom(NONCE_BYTES).hex()
    asking = Connection(lambda _: sock, authority, timeout=DIAL_S)
    try:
        asking.request("GET", f"{API}/proof?nonce={nonce}", body=None, headers={})
        answer = asking.getresponse()
        proven = json.loads(answer.read(_ANSWER_BYTES))["shared"]
        return (
            answer.isclosed()
            and asking.sock is sock
            and hmac.compare_digest(str(proven).encode(), server_proof(key, nonce).encode())
        )
    except (ValueError, KeyError, TypeError):
        return False
    finally:
        asking.let_go()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
