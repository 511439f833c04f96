"""Reads the event stream that the user's script writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from hopyard.private_files import open_below


class EventLog:
    """Reads each whole line of a growing file once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def poll(self) -> list[dict[str, Any]]:
        """Returns the events since the last call.

        A partial line at the end is read by a later call. A line that is not a JSON object is skipped, and so
        are released disk blocks.
        """
        folder = self._path.parent  # the script may replace it by a link
        try:
            with os.fdopen(
                open_below(folder.parent, f"{folder.name}/{self._path.name}", os.O_RDONLY), "rb"
            ) as file:
                self._offset = os.lseek(file.fileno(), self._offset, os.SEEK_DATA)
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is no data after this offset
                raise
            return []
        complete_bytes = data.rfind(b"\n") + 1
        self._offset += complete_bytes
        events = []
        for line in data[:complete_bytes].splitlines():
            try:
                event = json.loads(line.lstrip(b"\0"))
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
        return events
