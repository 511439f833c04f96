"""The cached inputs of this machine that a run may need: datasets and environments, by the keys of
`Gang.input_digests`.

A replica that has prepared an input leaves a marker. That is a file named by the key, and its content is the
path, relative to the folder of caches, that must exist.
"""

from __future__ import annotations

import time
from pathlib import Path

_SETTLED_AFTER_S = (
    1.0  # a folder that has just changed may change again within one tick of the file system's clock
)


class CachedKeys:
    """caches: the folder of caches; `markers` is a folder below it. It is called every second, so it reads
    only changed folders."""

    def __init__(self, caches: Path, *, markers: str = "held") -> None:
        self._caches, self._markers = caches, caches / markers
        self._folder_times: tuple[float, ...] = ()
        self._scanned_at = 0.0
        self._keys: frozenset[str] = frozenset()

    def keys(self) -> frozenset[str]:
        """Returns the keys of the inputs that exist now. A marker of an evicted input is removed."""
        changed = tuple(
            _modified_at(folder) for folder in (self._markers, self._caches / "trees", self._caches / "envs")
        )
        if changed != self._folder_times or max(changed) > self._scanned_at - _SETTLED_AFTER_S:
            self._folder_times, self._scanned_at = changed, time.time()
            self._keys = frozenset(self._read())
        return self._keys

    def _read(self) -> list[str]:
        keys: list[str] = []
        try:
            markers = [marker for marker in self._markers.iterdir() if not marker.name.startswith(".")]
        except FileNotFoundError:
            return keys
        for marker in markers:
            try:
                if (self._caches / marker.read_text()).exists():
                    keys.append(marker.name)
                else:
                    marker.unlink()
            except OSError:
                continue
        return keys


def _modified_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
