"""Stores the commands of users where the processes of the gang read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.private_files import open_below, open_no_follow
from hopyard.replica.replica_log import log
from hopyard.sdk.command_file import SAFE_POINTS_DIR, CommandFile, has_commands


class CommandReceiver:
    """The command file of a gang. It is created with the first command, since most runs get none. The script
    may write to its folder, which must not lead to a file of another run."""

    def __init__(self, gang_folder: Path) -> None:
        self._folder = str(gang_folder)
        self._file: CommandFile | None = None

    @property
    def newest(self) -> int:
        """The highest number of a command that the gang has."""
        try:
            if self._file is None and has_commands(self._folder):
                self._file = self._create_file()
        except OSError as error:
            log(f"commands cannot be read: {error}")
        return 0 if self._file is None else self._file.newest

    def deliver(self, commands: Sequence[Any]) -> None:
        """Adds the commands. On a full disk they are delivered again with the next sync."""
        valid = [
            command
            for command in commands
            if isinstance(command, dict) and isinstance(command.get("number"), int)
        ]
        try:
            if self._file is None:
                self._file = self._create_file()
            self._file.append(valid)
        except OSError as error:
            log(f"commands cannot be stored: {error}")

    def _create_file(self) -> CommandFile:
        return CommandFile(self._folder, self._open)

    def _open(self, name: str, flags: int) -> int:
        folder = open_below(Path(self._folder), SAFE_POINTS_DIR, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return open_no_follow(name, flags, folder=folder)
        finally:
            os.close(folder)
