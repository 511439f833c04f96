"""Finds blobs that another server of the same database stores, and fetches them when this server needs
them."""

from __future__ import annotations

import asyncio
import hmac
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

from hopyard.api_client.client import Client
from hopyard.api_client.http11 import HttpConnection
from hopyard.api_client.http_client import API
from hopyard.config.home_identity import NONCE_BYTES
from hopyard.domain.cluster import ServerRecord
from hopyard.domain.ids import Digest
from hopyard.domain.urls import is_loopback_url
from hopyard.errors import BlobsOnOtherServer, HopyardError, MissingBlobs, StorageFull
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.server.server_directory import ServerDirectory
from hopyard.server.server_tokens import server_proof, server_token

REQUEST_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 3.0
RETRY_AFTER_S = 5.0  # so long no request is sent to a server that did not respond
_QUERY_DIGESTS = 20_000
_FETCH_DIGESTS, _BATCH_BYTES = 500, 8 * 1024 * 1024
_MAX_PROOF_BYTES = 4096
_SERVER_DOWN_HINT = "start that server again, or remove its node with `hop node rm` if it is gone for good"
log = logging.getLogger("hopyard.server")


@dataclass(frozen=True, slots=True)
class RemoteLookup:
    """missing: blobs that no reachable server has. unreachable: descriptions of the other servers."""

    missing: Sequence[Digest]
    unreachable: Sequence[str] = ()

    def check_reachable(self) -> None:
        """Raises BlobsOnOtherServer if an unreachable server may have the missing blobs."""
        if self.missing and self.unreachable:
            count = len(self.missing)
            blobs_are = "a blob is" if count == 1 else f"{count} blobs are"
            they_are = "it is stored" if count == 1 else "they are stored"
            raise BlobsOnOtherServer(
                f"{blobs_are} not on this server; {they_are} on {', or on '.join(self.unreachable)}",
                hints=(_SERVER_DOWN_HINT,),
            )

    def check_found(self, subject: str, *, hints: Sequence[str]) -> None:
        """Raises BlobsOnOtherServer, or MissingBlobs if no server has the missing blobs."""
        self.check_reachable()
        if self.missing:
            raise MissingBlobs(
                f"{len(self.missing)} of the {subject} are not on the server",
                digests=self.missing,
                hints=hints,
            )


class RemoteBlobs:
    """Looks up blobs on other servers. blobs: those of this server. engine: of this server. machine: the name
    of this server's machine."""

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
        # by engine of a server that did not respond: when, in seconds of the monotonic clock
        self._unreachable_until: dict[str, float] = {}

    async def find_missing(self, digests: Iterable[Digest]) -> RemoteLookup:
        """Looks up blobs. The result names those that neither this server nor another one has."""
        return await self._lookup(digests, self._find_missing_on)

    async def fetch_missing(self, digests: Iterable[Digest]) -> RemoteLookup:
        """Fetches the blobs that this server lacks. Raises StorageFull."""
        return await self._lookup(digests, self._fetch_from)

    async def _lookup(
        self,
        digests: Iterable[Digest],
        query: Callable[[ServerRecord, list[Digest]], asyncio.Future[list[Digest]]],
    ) -> RemoteLookup:
        missing = list(await self._blobs.find_missing(digests))
        if not missing:
            return RemoteLookup(())
        servers = await ServerDirectory.load(self._cluster, now=self._now())
        unreachable: list[str] = []
        for engine, server in servers.records.items():
            if engine == self._engine or not missing:
                continue
            unreachable_reason = self._unreachable_reason(servers, server)
            if not unreachable_reason:
                try:
                    missing = await query(server, missing)
                    continue
                except StorageFull:
                    raise
                except (HopyardError, OSError) as error:
                    log.warning("a request for blobs to the server %s failed: %s", server.place, error)
                    self._unreachable_until[engine] = time.monotonic()
                    unreachable_reason = f"which does not respond at {server.url}"
            nodes = [str(node.id) for node in await self._cluster.nodes() if node.engine == engine]
            unreachable.append(f"{servers.server_text(engine, nodes)}, {unreachable_reason}")
        return RemoteLookup(missing, unreachable)

    def _unreachable_reason(self, servers: ServerDirectory, server: ServerRecord) -> str:
        """Returns why a server cannot be reached; "" if it can."""
        since = servers.down_since(server.engine)
        if since is not None:
            return servers.downtime_text(since)
        if not server.url or not server.key:
            return "which runs an older version"
        if server.place.partition(":")[0] != self._machine and is_loopback_url(server.url):
            return (
                f"which other machines cannot reach: set `server: {{url: …}}` in its settings (now "
                f"{server.url})"
            )
        if time.monotonic() - self._unreachable_until.get(server.engine, float("-inf")) < RETRY_AFTER_S:
            return f"which does not respond at {server.url}"
        return ""

    def _find_missing_on(self, server: ServerRecord, digests: list[Digest]) -> asyncio.Future[list[Digest]]:
        return asyncio.ensure_future(asyncio.to_thread(_find_missing, self._client(server), digests))

    def _fetch_from(self, server: ServerRecord, digests: list[Digest]) -> asyncio.Future[list[Digest]]:
        return asyncio.ensure_future(self._fetch(server, digests))

    async def _fetch(self, server: ServerRecord, digests: list[Digest]) -> list[Digest]:
        loop = asyncio.get_running_loop()

        def store_blobs(blobs: Sequence[tuple[Digest, bytes]]) -> None:
            asyncio.run_coroutine_threadsafe(self._blobs.put_many(blobs), loop).result()

        await asyncio.to_thread(_fetch_batches, self._client(server), digests, store_blobs)
        return list(await self._blobs.find_missing(digests))

    def _client(self, server: ServerRecord) -> Client:
        token = server_token(server.key, sender=self._engine, now=self._now())
        return Client(server.url, token, timeout_s=REQUEST_TIMEOUT_S, dial=partial(_connect_verified, server))


def _find_missing(client: Client, digests: Sequence[Digest]) -> list[Digest]:
    try:
        missing: list[Digest] = []
        for start in range(0, len(digests), _QUERY_DIGESTS):
            missing += map(Digest, client.missing(digests[start : start + _QUERY_DIGESTS]))
        return missing
    finally:
        client.close()


def _fetch_batches(
    client: Client, digests: Sequence[Digest], store_blobs: Callable[[Sequence[tuple[Digest, bytes]]], None]
) -> None:
    """Fetches the blobs that the server of this client has, and passes them to `store_blobs` in batches. It
    verifies them."""
    missing = set(_find_missing(client, digests))
    available, batch, size = (
        [digest for digest in digests if digest not in missing],
        list[tuple[Digest, bytes]](),
        0,
    )
    try:
        for start in range(0, len(available), _FETCH_DIGESTS):
            for digest, data in client.fetch(available[start], available[start : start + _FETCH_DIGESTS]):
                batch.append((Digest(digest), data))
                size += len(data)
                if size >= _BATCH_BYTES:
                    store_blobs(batch)
                    batch, size = [], 0
        if batch:
            store_blobs(batch)
    finally:
        client.close()


def _connect_verified(server: ServerRecord, timeout_s: float) -> socket.socket:
    """Returns a connection to the server, after the peer has proved that it knows the server's key. Raises
    OSError."""
    split = urlsplit(server.url)
    host, port = split.hostname or "", split.port or 80
    sock = socket.create_connection((host, port), min(timeout_s, CONNECT_TIMEOUT_S))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not _verify_server(sock, split.netloc, server.key):
            raise ConnectionRefusedError(f"another program listens at {server.url}")
        sock.settimeout(timeout_s)
    except BaseException:
        sock.close()
        raise
    return sock


def _verify_server(sock: socket.socket, authority: str, key: str) -> bool:
    nonce = os.urandom(NONCE_BYTES).hex()
    connection = HttpConnection(lambda _: sock, authority, timeout=CONNECT_TIMEOUT_S)
    try:
        connection.request("GET", f"{API}/proof?nonce={nonce}", body=None, headers={})
        response = connection.getresponse()
        proof = json.loads(response.read(_MAX_PROOF_BYTES))["shared"]
        return (
            response.isclosed()
            and connection.sock is sock
            and hmac.compare_digest(str(proof).encode(), server_proof(key, nonce).encode())
        )
    except (ValueError, KeyError, TypeError):
        return False
    finally:
        connection.detach()
