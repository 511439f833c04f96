"""The progress of packing and transfer."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Receives progress from several threads at once; must be fast and must not raise."""

    def begin(self, what: str, total_bytes: int, /) -> None:
        """Starts a stage: "hashing", "uploading", "downloading"."""

    def advance(self, size_bytes: int, /) -> None:
        """Adds completed bytes to the stage."""


class _SilentProgress:
    def begin(self, what: str, total_bytes: int, /) -> None: ...
    def advance(self, size_bytes: int, /) -> None: ...


NO_PROGRESS: ProgressListener = _SilentProgress()
