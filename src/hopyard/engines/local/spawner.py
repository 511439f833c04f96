"""The engine's client of the spawner: a process that forks replicas, started when it is first needed."""

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
    """Starts `command` with the number of an inherited socket as its last argument, and exchanges JSON lines
    over it.

    One request at a time. A spawner that died is restarted; it ends by itself when the socket closes. umask:
    of the scripts, which the spawner passes on; None is this process's.
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
        """Starts the spawner and waits until it is ready, so that the first launch is fast. Raises
        LaunchFailed."""
        await self._request({"start": [], "adopt": False})

    async def spawn(self, folders: Sequence[Path], *, adopt: bool = False) -> list[int | None]:
        """Forks one replica per folder, all or none, and returns their process ids.

        None for a folder whose replica is alive, or (without `adopt`) has already run: it is not started
        again. Raises LaunchFailed.
        """
        answer = await self._request({"start": [str(folder) for folder in folders], "adopt": adopt})
        if "error" in answer:
            raise LaunchFailed(f"the replicas could not be started: {answer['error']}")
        return list(answer["started"])

    async def close(self) -> None:
        """Ends the spawner. Replicas continue."""
        async with self._lock:
            await self._disconnect()

    async def _request(self, request: Mapping[str, Any]) -> Any:
        async with self._lock:
            try:
                return await self._request_once(request)
            except (OSError, EOFError, ValueError, TimeoutError):
                # a retry with a new spawner is safe: a replica that was forked holds its lock, and the answer
                # for it is
                # None
                pass
            try:
                return await self._request_once(request)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                raise LaunchFailed(f"the replica spawner failed: {error or type(error).__name__}") from error

    async def _request_once(self, request: Mapping[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(self._exchange(request), ANSWER_TIMEOUT_S)
        except BaseException:
            # also when cancelled: the next answer would belong to this request
            await self._disconnect()
            raise

    async def _exchange(self, request: Mapping[str, Any]) -> Any:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await self._connect()
        self._writer.write(json.dumps(request).encode() + b"\n")
        await self._writer.drain()
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the spawner ended")
        return json.loads(line)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        own_socket, spawner_socket = socket.socketpair()
        with spawner_socket:
            try:
                # In a new session, so that a terminal's Ctrl-C does not reach it. Popen without preexec_fn
                # uses
                # vfork, which is fast.
                self._process = await asyncio.to_thread(
                    subprocess.Popen,
                    [*self._command, str(spawner_socket.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(spawner_socket.fileno(),),
                    start_new_session=True,
                    cwd="/",
                    env=self._env,
                    umask=self._umask,
                )
            except OSError:
                own_socket.close()
                raise
        own_socket.setblocking(False)
        return await asyncio.open_connection(sock=own_socket, limit=1 << 20)

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
