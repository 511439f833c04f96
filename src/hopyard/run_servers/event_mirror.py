"""Copies the event files that a run wrote, as they grow."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.run_files import RunFile, is_ended, list_run_files, read_run_file
from hopyard.errors import HopyardError, IntegrityError
from hopyard.private_files import make_folder, open_file

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_PATTERNS = ("*.tfevents.*",)
_WAIT_FACTOR = 10  # a file is read again after ten times as long as its last copy took


class EventMirror:
    """The copies of the event files of one run. folder: where they are made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_again_at: dict[str, float] = {}

    def update(self, client: Client, run: api.RunOut) -> None:
        """Appends what the files have gained. A run may end meanwhile; the next update reads its stored
        files."""
        try:
            files = list_run_files(client, run, _PATTERNS)
        except ImportError:  # stored files need the packages of Hopyard, which the environment may lack
            return
        for file in files:
            name = f"{file.rank}/{file.path}" if file.rank else file.path
            is_due = is_ended(run) or time.monotonic() >= self._read_again_at.get(name, 0.0)
            if file.target is None and is_due:
                with suppress(HopyardError, OSError):
                    self._copy(client, run, file, name)

    def _copy(self, client: Client, run: api.RunOut, file: RunFile, name: str) -> None:
        copy = self._folder / name
        known = copy.stat().st_size if copy.exists() else 0
        if file.size_bytes <= known or not copy.resolve().is_relative_to(self._folder.resolve()):
            return
        make_folder(copy.parent)
        began, offset = time.monotonic(), 0
        with open(copy, "ab", opener=open_file) as output, suppress(IntegrityError):
            for block in read_run_file(client, run, file):
                output.write(block[max(0, known - offset) :])
                offset += len(block)
        self._read_again_at[name] = time.monotonic() + _WAIT_FACTOR * (time.monotonic() - began)
