"""The streams of an offline recording, with the limits that a replica applies before it ships its streams."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hopyard.domain.run import UNSTORED
from hopyard.domain.stream_limits import OUTPUT_STREAMS, STREAMS, StreamLimits
from hopyard.private_files import open_file
from hopyard.sdk.output_limit import OutputLimit
from hopyard.sdk.report_limit import ReportLimit

if TYPE_CHECKING:
    from typing import Self

# summaries that are sent instead of the rest of a long stream; rebuilt for each sync, with the same content
_SUMMARY_DIR = "reports"


class LimitedStreams:
    """A context manager over the ended recording in `folder`.

    sizes: the final size of the server's copy of each stream, by name.
    """

    def __init__(self, folder: Path, limits: StreamLimits) -> None:
        self._folder, self._summary_dir = folder / "streams", folder / _SUMMARY_DIR
        self._output, self._reports = (
            OutputLimit(limits.output_bytes),
            ReportLimit(limits.reports_bytes, self._summary_dir),
        )
        self._descriptors: dict[str, int] = {}
        self._closing = ExitStack()
        self.sizes: dict[str, int] = {}

    def __enter__(self) -> Self:
        shutil.rmtree(self._summary_dir, ignore_errors=True)
        self._closing.callback(shutil.rmtree, self._summary_dir, ignore_errors=True)
        with self._closing:
            self._open()
            self._record_limit_events()
            self.sizes = {name: self._limited_size(name) for name in self._descriptors}
            self._closing = self._closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Returns at most `count` bytes of the server's copy of a stream, from `offset`."""
        descriptor, count = self._descriptors[name], min(count, self.sizes[name] - offset)
        if self._reports.applies(name, self._size(name)):
            return self._reports.read(name, descriptor, offset, count)
        return self._output.read(name, descriptor, offset, count, ended=True)

    def _open(self) -> None:
        """Opens the streams that are not open yet."""
        for name in STREAMS:
            if name not in self._descriptors and (self._folder / name).is_file():
                self._descriptors[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
                self._closing.callback(os.close, self._descriptors[name])

    def _size(self, name: str) -> int:
        return os.fstat(self._descriptors[name]).st_size

    def _limited_size(self, name: str) -> int:
        size, descriptor = self._size(name), self._descriptors[name]
        if self._reports.applies(name, size):
            return self._reports.update(
                name, str(self._folder / name), descriptor, size, acknowledged=0, now=0.0, ended=True
            )
        return self._output.shipped_size(name, descriptor, size, ended=True)

    def _record_limit_events(self) -> None:
        """Appends an event for each stream that is cut, once: an interrupted sync runs again."""
        messages: list[str] = []
        for name, descriptor in self._descriptors.items():
            size = self._size(name)
            if name in OUTPUT_STREAMS and (dropped := self._output.dropped_bytes(name, descriptor, size)):
                messages.append(self._output.explain(name, 0, dropped))
            elif self._reports.applies(name, size):
                messages.append(self._reports.explain(name, 0))
        if not messages:
            return
        path = self._folder / "events"
        recorded = path.read_bytes() if path.exists() else b""
        lines = [json.dumps({"kind": UNSTORED, "text": text}).encode() + b"\n" for text in messages]
        missing = [line for line in lines if line not in recorded]
        if missing:
            with os.fdopen(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as events:
                events.write((b"" if recorded.endswith(b"\n") or not recorded else b"\n") + b"".join(missing))
        self._open()
