"""Durable checkpoints of a study: the states that it would go on from, at most every so often, beside the
hops."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.errors import HopyardError
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainer import Ground


class Saving:
    """One save at a time, on a thread of its own. obtain: has a state brought to the shelf, while the
    driver's thread hears events. scratch: where files lie until they are saved. over: called from that thread
    when one has ended."""

    def __init__(
        self,
        ground: Ground,
        shelf: Shelf,
        obtain: Callable[[str], None],
        scratch: Path,
        *,
        every_s: float,
        over: Callable[[], None],
    ) -> None:
        self._ground, self._shelf, self._obtain, self._scratch, self._every_s, self._over = (
            ground,
            shelf,
            obtain,
            scratch,
            every_s,
            over,
        )
        self._thread: threading.Thread | None = None
        self._last = time.monotonic()
        self._names: frozenset[str] | None = None  # what the last one held

    @property
    def is_due(self) -> bool:
        return not self.is_running and time.monotonic() - self._last >= self._every_s

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, states: Mapping[str, Any]) -> None:
        """By name, each with what is written down of it (JSON).
        Those that were saved last are not saved again."""
        self._last = time.monotonic()
        if not states or self._names == frozenset(states):
            return
        self._thread = threading.Thread(
            target=self._save, args=(dict(states),), name="study-save", daemon=True
        )
        self._thread.start()

    def _save(self, states: Mapping[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="saving-", dir=self._scratch))
        try:
            files = {}
            for name in states:
                self._obtain(name)
                files[name] = folder / name
                self._shelf.export(name, files[name])
            self._ground.save(files, states)
            self._names = frozenset(states)
        except (OSError, HopyardError) as failed:
            self._ground.say(f"the study could not be saved: {failed}")
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)
            self._over()
