"""What the caches of this machine hold that a run may want: datasets and environments, by the keys of
`Gang.input_digests`.

A replica that has put one in place leaves a marker: a file named by the key that names, from the folder of
caches, what must be there.
"""

from __future__ import annotations

import time
from pathlib import Path

_SETTLED_AFTER_S = (
    1.0  # a folder that changed just now may change again within one tick of the file system's clock
)


class CachedKeys:
    """caches: the folder of caches; markers lie in `markers` below it.
    Asked every second, so it looks only at what changed."""

    def __init__(self, caches: Path, *, markers: str = "held") -> None:
        self._caches, self._markers = caches, caches / markers
        self._folder_times: tuple[float, ...] = ()
        self._scanned_at = 0.0
        self._keys: frozenset[str] = frozenset()

    def keys(self) -> frozenset[str]:
        """Keys of what is there now. A marker of what was evicted is removed."""
        changed = tuple(
            _modified_at(folder) for folder in (self._markers, self._caches / "trees", self._caches / "envs")
        )
        if changed != self._folder_times or max(changed) > self._scanned_at - _SETTLED_AFTER_S:
            self._folder_times, self._scanned_at = changed, time.time()
            self._keys = frozenset(self._read())
        return self._keys

    def _read(self) -> list[str]:
        found: list[str] = []
        try:
            markers = [marker for marker in self._markers.iterdir() if not marker.name.startswith(".")]
        except FileNotFoundError:
            return found
        for marker in markers:
            try:
                if (self._caches / marker.read_text()).exists():
                    found.append(marker.name)
                else:
                    marker.unlink()
            except OSError:
                continue
        return found


def _modified_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
