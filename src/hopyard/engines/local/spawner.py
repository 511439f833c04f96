"""The engine's end of the spawner: a process that forks replicas, started when it is first needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopyard.errors import LaunchFailed

ANSWER_TIMEOUT_S = 60.0


class SpawnerClient:
    """Starts `command` with the number of an inherited socket as its last argument and speaks JSON lines over
    it.

    One request at a time. A spawner that died is started again; it dies by itself when the socket closes.
    umask: of the scripts, which the spawner hands on; None is this process's.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, umask: int | None = None
    ) -> None:
        self._command, self._env, self._umask = tuple(command), env, -1 if umask is None else umask
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Have it running and ready, so that the first launch need not wait for it. Raises LaunchFailed."""
        await self._request({"start": [], "adopt": False})

    async def spawn(self, folders: Sequence[Path], *, adopt: bool = False) -> list[int | None]:
        """Fork one replica per folder, all or none; their process ids. None for a folder whose replica lives
        already, or (without `adopt`) has lived: it is not started again. Raises LaunchFailed."""
        answer = await self._request({"start": [str(folder) for folder in folders], "adopt": adopt})
        if "error" in answer:
            raise LaunchFailed(f"the replicas could not be started: {answer['error']}")
        return list(answer["started"])

    async def close(self) -> None:
        """End the spawner. Replicas live on."""
        async with self._lock:
            await self._disconnect()

    async def _request(self, request: Mapping[str, Any]) -> Any:
        async with self._lock:
            try:
                return await self._request_once(request)
            except (OSError, EOFError, ValueError, TimeoutError):
                # asking a new one is safe: a replica that was forked holds its lock, and is answered with
                # None
                pass
            try:
                return await self._request_once(request)
            except (OSError, EOFError, ValueError, TimeoutError) as broken:
                raise LaunchFailed(
                    f"the replica spawner failed: {broken or type(broken).__name__}"
                ) from broken

    async def _request_once(self, request: Mapping[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(self._exchange(request), ANSWER_TIMEOUT_S)
        except BaseException:
            # also when cancelled half-way: the next answer would belong to this request
            await self._disconnect()
            raise

    async def _exchange(self, request: Mapping[str, Any]) -> Any:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await self._connect()
        self._writer.write(json.dumps(request).encode() + b"\n")
        await self._writer.drain()
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it ended")
        return json.loads(line)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own: a terminal's Ctrl-C is not for it. Popen with no preexec_fn is a
                # vfork, quick even here.
                self._process = await asyncio.to_thread(
                    subprocess.Popen,
                    [*self._command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd="/",
                    env=self._env,
                    umask=self._umask,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return await asyncio.open_connection(sock=ours, limit=1 << 20)

    async def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        process, self._process, self._reader, self._writer = self._process, None, None, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, 5)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
