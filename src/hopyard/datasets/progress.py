"""How far packing and transfer have come, for whoever shows it."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Told from several threads at once; must be quick and must not raise."""

    def begin(self, what: str, total_bytes: int, /) -> None:
        """A stage begins: "hashing", "uploading", "downloading"."""

    def advance(self, size_bytes: int, /) -> None:
        """So many bytes more of the stage are done."""


class _SilentProgress:
    def begin(self, what: str, total_bytes: int, /) -> None: ...
    def advance(self, size_bytes: int, /) -> None: ...


NO_PROGRESS: ProgressListener = _SilentProgress()
