"""Reading the event stream that the user's side writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class EventLog:
    """Whole lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def poll(self) -> list[dict[str, Any]]:
        """The events since the last call. A line cut off at the end is left for later; one that is no JSON object is skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._at += whole
        found = []
        for line in data[:whole].splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                found.append(event)
        return found
