"""The limit of what a run reports: its metrics, TensorBoard scalars, events and samples of what it used.

Up to the limit a stream is sent as it grows; it is cut where a record ends. What follows is read on the node.
At growing intervals, and at the end, the newest value of each metric (of each kind of event) is written to a
file of the replica, which is sent instead. The blocks that were read are given back to the disk. The script
notices nothing.
"""

from __future__ import annotations

import errno
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hopyard.config.units import format_memory
from hopyard.domain.points import (
    MAX_RECORD_BYTES,
    NO_STEP,
    POINT,
    pack_definition,
    pack_point,
    read_stretches,
    whole_bytes,
)
from hopyard.domain.run import UNSTORED, RunEventKind
from hopyard.errors import IntegrityError
from hopyard.private_files import make_folder, open_inside, open_plain
from hopyard.sdk.holes import BLOCK, punch

_PIECE_BYTES = 4 * 1024**2
_PIECES_A_LOOK = 4
# how long between two values that are kept: that share of the time since the limit was passed
_FIRST_S, _GROWTH = 2.0, 0.02
_MOST_NAMES = 10_000  # metrics of one stream with values that are kept
_MOST_LINES = 1_000  # of what is reported of a run once
_ALWAYS = frozenset({UNSTORED, RunEventKind.TIME_LIMIT, "note", "environment"})
_MERGED = frozenset({"params", "summary"})


class Digest(Protocol):
    """The newest values of a stream's records."""

    def feed(self, data: bytes) -> int:
        """Read the whole records at the beginning of `data`; how many bytes these are.
        Raises IntegrityError when there is a damage."""

    def forget(self) -> None:
        """What was read so far is sent as it is."""

    def take(self, room: int) -> bytes:
        """What is new since the last call as records of at most `room` bytes."""


class NewestPoints:
    """The newest point of each metric. Points without a step are counted, so this has to see a stream from
    its beginning."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._newest: dict[int, tuple[int, float, float]] = {}
        self._fresh: set[int] = set()
        self._defined: set[int] = set()

    def feed(self, data: bytes) -> int:
        used = 0
        for part in read_stretches(data, self._names):
            if isinstance(part, int):
                used = part
            else:
                self._look(part)
        for series in list(self._names)[_MOST_NAMES:]:
            del self._names[series]
        return used

    def _look(self, points: Iterator[tuple[int, int, int, float, float]]) -> None:
        newest, fresh, names = self._newest, self._fresh, self._names
        for _, series, given, at, value in points:
            if series in names:
                before = newest.get(series)
                newest[series] = (given if given != NO_STEP else (before[0] + 1 if before else 0), at, value)
                fresh.add(series)

    def forget(self) -> None:
        self._fresh.clear()

    def take(self, room: int) -> bytes:
        records: list[bytes] = []
        for series in [series for series in self._names if series in self._fresh]:
            record = b"" if series in self._defined else pack_definition(self._names[series])
            record += pack_point(POINT, series, *self._newest[series])
            room -= len(record)
            if room < 0:
                break
            records.append(record)
            self._fresh.discard(series)
            self._defined.add(series)
        return b"".join(records)


class NewestLines:
    """Of JSON lines the newest of each kind. Values of params and summary are put together; what is reported
    of a run once is kept whole."""

    def __init__(self) -> None:
        self._once: list[bytes] = []
        self._newest: dict[str, dict[str, Any]] = {}
        self._merged: dict[str, dict[str, Any]] = {}
        self._told = 0

    def feed(self, data: bytes) -> int:
        used = data.rfind(b"\n") + 1
        if not used and len(data) == _PIECE_BYTES:
            return len(data)  # no reader takes a line of that length
        for line in data[:used].splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                self._take_in(event, line)
        return used

    def _take_in(self, event: dict[str, Any], line: bytes) -> None:
        kind, values = str(event.get("kind", ""))[:64], event.get("values")
        if kind in _ALWAYS:
            self._told += 1
            if self._told <= _MOST_LINES:
                self._once.append(line + b"\n")
        elif len(self._newest) < _MOST_LINES or kind in self._newest:
            if kind in _MERGED and isinstance(values, dict):
                merged = self._merged.setdefault(kind, {})
                merged |= {
                    name: value
                    for name, value in values.items()
                    if name in merged or len(merged) < _MOST_NAMES
                }
                event = {**event, "values": merged}
            self._newest[kind] = event

    def forget(self) -> None:
        self._once, self._newest, self._merged = [], {}, {}

    def take(self, room: int) -> bytes:
        records: list[bytes] = []
        self._once = _moved(self._once, records, room)
        room -= sum(map(len, records))
        for kind, event in list(self._newest.items()):
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            if len(line) <= room:
                records.append(line)
                room -= len(line)
                del self._newest[kind]
        return b"".join(records)


def _moved(lines: list[bytes], into: list[bytes], room: int) -> list[bytes]:
    """Those of `lines` for which there is no room; the others are put into `into`."""
    for at, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return lines[at:]
        into.append(line)
    return []


_DIGESTS: Mapping[str, type[NewestPoints | NewestLines]] = {
    "metrics": NewestPoints,
    "tensorboard": NewestPoints,
    "events": NewestLines,
    "system": NewestLines,
}


@dataclass(slots=True)
class _Limited:
    """One stream that passed its limit. cut: how much of its file the server gets. read_to: up to where its
    file was read. kept: the file of what is sent instead of the rest, and its length. unwritten: what a full
    disk did not take of it. flushed: how much of each there was when something was kept."""

    cut: int
    kept: int
    digest: Digest
    kept_bytes: int = 0
    read_to: int = 0
    given_back: int = 0
    since: float = 0.0
    due: float = 0.0
    damaged: bool = False
    unwritten: bytes = b""
    flushed: list[tuple[int, int]] = field(default_factory=list)


class ReportLimit:
    """Of all streams of reports of a replica. limit_bytes: of each; 0 is none.
    folder: where what is kept of them lies. say: hears of trouble.

    All but `server_offset` belongs to one thread. A study's journal is not limited: the next driver reads all
    of it.
    """

    def __init__(
        self, limit_bytes: int, folder: Path, *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.limit_bytes, self._folder, self._say = limit_bytes, folder, say
        self._limited: dict[str, _Limited] = {}

    def applies(self, name: str, size: int) -> bool:
        """Whether this stream, with a file of `size` bytes, is no longer sent as it is."""
        return (
            bool(self.limit_bytes) and name in _DIGESTS and (size > self.limit_bytes or name in self._limited)
        )

    def look(
        self, name: str, path: str, descriptor: int, size: int, *, acknowledged: int, now: float, ended: bool
    ) -> int:
        """Read what is new in a stream that `applies`; how long the server's copy is to be. Raises OSError
        where what is kept cannot be written: nothing is lost then. acknowledged: how much the server has."""
        limited = self._limited.get(name)
        if limited is None:
            limited = self._limited[name] = self._begin(name, descriptor, size, acknowledged, now)
        pieces = 0
        while limited.read_to < size and (ended or pieces < _PIECES_A_LOOK):
            pieces += 1
            if not self._read(limited, descriptor, size):
                break
        if now >= limited.due or ended:
            self._keep(limited, ended=ended)
            limited.due = now + max(_FIRST_S, _GROWTH * (now - limited.since))
        if not ended and limited.read_to - max(limited.given_back, limited.cut) >= 16 * BLOCK:
            # once is enough where the file system cannot: then the file takes its space until the end
            end = limited.read_to
            before, limited.given_back = max(limited.given_back, limited.cut), end
            try:
                limited.given_back = punch(path, before, end)
            except OSError as failed:
                self._say(f"{name} takes its space until the end: {failed.strerror}")
        return limited.cut + limited.kept_bytes

    def read(self, name: str, descriptor: int, at: int, count: int) -> bytes:
        """At most `count` bytes of what the server gets, from its byte `at` on."""
        limited = self._limited.get(name)
        if limited is None:
            return b""  # there was no room to begin
        if at < limited.cut:
            return os.pread(descriptor, min(count, limited.cut - at), at)
        return os.pread(
            limited.kept, max(0, min(count, limited.kept_bytes - (at - limited.cut))), at - limited.cut
        )

    def server_offset(self, name: str, offset: int) -> int:
        """Where the server's copy of a stream ends that is cut at byte `offset` of its file."""
        limited = self._limited.get(name)
        if limited is None or offset <= limited.cut:
            return offset
        flushed = list(limited.flushed)
        at = bisect_right(flushed, offset, key=lambda flush: flush[0])
        return limited.cut + (flushed[at - 1][1] if at else 0)

    def sentence(self, name: str, rank: int) -> str:
        return (
            f"{name} of replica {rank} passed the limit of {format_memory(self.limit_bytes)}: of what "
            "follows only the newest values are kept, now and then (`hop run --max-metrics`, at most "
            f"`runs: {{max_metrics: …}}` in config.yaml)"
        )

    def _begin(self, name: str, descriptor: int, size: int, acknowledged: int, now: float) -> _Limited:
        make_folder(self._folder, below=self._folder.parent)
        earlier = sorted(path for path in self._folder.glob(f"{name}.*") if path.suffix[1:].isdecimal())
        if earlier:  # of a replica that died: what it had not kept is gone with it
            kept = self._open(earlier[0].name, os.O_RDWR)
            return _Limited(
                int(earlier[0].suffix[1:]),
                kept,
                _DIGESTS[name](),
                os.fstat(kept).st_size,
                read_to=size,
                given_back=size,
                since=now,
                due=now,
            )
        digest = _DIGESTS[name]()
        cut, damaged = self._cut(descriptor, digest)
        cut = max(cut, acknowledged)
        kept = self._open(f"{name}.{cut}", os.O_RDWR | os.O_CREAT)
        return _Limited(cut, kept, digest, read_to=cut, since=now, due=now + _FIRST_S, damaged=damaged)

    def _open(self, name: str, flags: int) -> int:
        """A file of the folder, which lies where the script writes, too: a link there would lead to what the
        script may not read."""
        folder = open_inside(self._folder.parent, self._folder.name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return open_plain(name, flags, folder=folder)
        finally:
            os.close(folder)

    def _cut(self, descriptor: int, digest: Digest) -> tuple[int, bool]:
        """The end of the last whole record before the limit, and whether the stream is damaged before it; the
        digest has read all that."""
        limit, at = self.limit_bytes, 0
        if isinstance(digest, NewestLines):
            begin = max(0, limit - _PIECE_BYTES)
            newline = os.pread(descriptor, limit - begin, begin).rfind(b"\n")
            return (begin + newline + 1 if newline >= 0 else limit), False
        while at < limit:
            data = os.pread(descriptor, min(_PIECE_BYTES, limit - at), at)
            used = whole_bytes(data)
            if len(data) - used >= MAX_RECORD_BYTES:
                return limit, True
            digest.feed(data[:used])
            at += used
            if at + len(data) - used >= limit:
                break
        digest.forget()
        return at, False

    def _read(self, limited: _Limited, descriptor: int, size: int) -> bool:
        """Read one piece; whether there may be more."""
        if limited.damaged:
            limited.read_to = size
            return False
        data = os.pread(descriptor, min(_PIECE_BYTES, size - limited.read_to), limited.read_to)
        try:
            used = limited.digest.feed(data)
        except IntegrityError:
            # Half a record that is being taken back just now reads as zeros: only what is longer than one is
            # damage.
            used = whole_bytes(data)
            limited.damaged = len(data) - used >= MAX_RECORD_BYTES
        limited.read_to += used
        return used > 0

    def _keep(self, limited: _Limited, *, ended: bool) -> None:
        """Write what is new: at most a quarter of the limit in all, half of which is left for the end."""
        room = self.limit_bytes // (4 if ended else 8) - limited.kept_bytes
        data = limited.unwritten or (limited.digest.take(room) if room > 0 else b"")
        if not data:
            return
        limited.unwritten = data
        if os.pwrite(limited.kept, data, limited.kept_bytes) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        limited.unwritten, limited.kept_bytes = b"", limited.kept_bytes + len(data)
        limited.flushed.append((limited.read_to, limited.kept_bytes))
