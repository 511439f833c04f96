"""Reading the event stream that the user's side writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from hopyard.private_files import open_no_follow


class EventLog:
    """Whole lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def poll(self) -> list[dict[str, Any]]:
        """The events since the last call. A line cut off at the end is left for later; one that is no JSON
        object is skipped, and so is what was given back to the disk."""
        try:
            with os.fdopen(open_no_follow(self._path, os.O_RDONLY), "rb") as file:
                self._offset = os.lseek(file.fileno(), self._offset, os.SEEK_DATA)
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as failed:
            if failed.errno != errno.ENXIO:  # there is nothing behind this place
                raise
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        found = []
        for line in data[:whole].splitlines():
            try:
                event = json.loads(line.lstrip(b"\0"))
            except ValueError:
                continue
            if isinstance(event, dict):
                found.append(event)
        return found
