"""Publishes the address of the server to processes of its machine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hopyard import __version__
from hopyard.api_client.home_socket import listen
from hopyard.config.descriptor_limit import descriptor_limit
from hopyard.config.home import Home
from hopyard.config.home_identity import folder_identity
from hopyard.errors import is_disk_full
from hopyard.private_files import make_folder, overwrite, write_atomically
from hopyard.server.connections import backlog_for

_CHECK_INTERVAL_S = 1.0  # between two checks that the files exist
RetryWithReserve = Callable[[Path, Callable[[], object]], object]  # `DiskReserves.retry_with_reserve`
log = logging.getLogger("hopyard.server")


class DiscoveryFiles:
    """The files by which processes of this machine find the server: the socket in the home, and
    `server.json`. Both are restored when they vanish. retry: repeats a write on a full disk."""

    def __init__(
        self, home: Home, url: str, started_at: datetime, warning: str, retry: RetryWithReserve
    ) -> None:
        self._home, self._location, self._retry = home, folder_identity(home), retry
        self._server_info = {
            "url": url,
            "started_at": started_at.isoformat(),
            "version": __version__,
            "place": self._location,
            "warning": warning,
        }
        self._stamps: tuple[object, ...] = ()
        self._withdrawn = False

    async def publish(self, add_unix_socket: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Creates the files, so that the server can be found."""
        if not self._stamps or _file_stamp(self._home.socket_file) != self._stamps[1]:
            listen_socket = listen(self._home, backlog=backlog_for(descriptor_limit()))
            if listen_socket is None:
                log.warning(
                    "cannot create %s; processes of this machine use the port", self._home.socket_file
                )
            else:
                await add_unix_socket(listen_socket)
        self._write(os.getpid())
        self._write_run_visible_files()
        self._stamps = self._file_stamps()

    async def restore_missing_files(
        self, add_unix_socket: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        """Restores the files when they vanish, as long as the home exists."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if self._withdrawn:  # the server still completes earlier requests
                return
            with suppress(OSError):
                if self._file_stamps() != self._stamps and folder_identity(self._home) == self._location:
                    await self.publish(add_unix_socket)

    def withdraw(self) -> None:
        """Records that the server ends on purpose, by pid 0, and removes the socket."""
        self._withdrawn = True
        with suppress(OSError):
            if folder_identity(self._home) == self._location:
                self._home.socket_file.unlink(missing_ok=True)
                self._write(0)
                self._write_run_visible_files()

    def _write(self, pid: int) -> None:
        file, text = self._home.server_file, json.dumps({"pid": pid, **self._server_info}).encode() + b"\n"
        try:
            self._retry(self._home.root, lambda: write_atomically(file, text))
        except OSError as error:
            if not is_disk_full(error) or not file.exists():
                raise
            overwrite(file, text)

    def _write_run_visible_files(self) -> None:
        """Links the files into a folder that runs can see, since they see no other files of the home."""
        folder = self._home.address_dir
        # on a full disk, or one without hard links, a run uses the port that it got at its start
        with suppress(OSError):
            make_folder(folder)
            for file in (self._home.server_file, self._home.socket_file):
                (folder / file.name).unlink(missing_ok=True)
                if file.exists():
                    os.link(file, folder / file.name)

    def _file_stamps(self) -> tuple[object, ...]:
        return tuple(_file_stamp(path) for path in (self._home.server_file, self._home.socket_file))


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Returns a value that changes when the file is replaced, written or removed."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns
