"""Converts TensorBoard event files and printed metrics of a script to points of the `tensorboard` stream."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hopyard.domain.metric_records import (
    NO_STEP,
    POINT,
    Point,
    pack_definition,
    pack_point,
    read_records,
    series_id,
)
from hopyard.errors import IntegrityError
from hopyard.private_files import open_below, read_below, write_below
from hopyard.replica import process_tree
from hopyard.replica.output_metrics import PRINTED_STREAM, OutputMetrics
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.tfevents import EVENT_FILE_NAME, EventFiles, FilePosition

# of a replica's folder, lines of JSON: the path of each opened file, or {"ignored": path} for a file of a
# process that a launcher started beside the first one
EVENT_FILES = "event_files"
EVENT_POSITIONS = "event_positions"  # of a replica's folder, `TailPositions`
_POLL_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 5.0
_FLUSH_RECORDS = 8192
_MAX_NAME_LENGTH = 1024
_MAX_NAMED_TAGS = 3  # of each kind
_MAX_SERIES = 1_000_000
_MAX_KNOWN_BYTES = 64 * 1024 * 1024
_KEY = struct.Struct("<Qqdd")  # of a point: series, step, time, value; NaN is equal to itself
_MIN_STEP = NO_STEP + 1  # the stream has no lower one
_WRITER_PID = re.compile(r"events\.out\.tfevents\.\d+\..+\.(\d+)\.\d+(?:\.v2)?(?:\.[^.\d][^.]*)?")


class _SourcePositions(msgspec.Struct):
    """Of the files below one root."""

    root: str
    files: dict[str, FilePosition]
    prefixes: dict[str, str]

    @classmethod
    def of(cls, files: EventFiles) -> _SourcePositions:
        return cls(files.root, files.positions(), dict(files.prefixes()))


class TailPositions(msgspec.Struct):
    """How far the event files of a run were read. stream_bytes: the length of the stream of their points."""

    stream_bytes: int
    work: _SourcePositions
    outside: list[_SourcePositions]
    reported: _SourcePositions


def read_positions(folder: ReplicaDir) -> TailPositions | None:
    """Returns the positions that the replica of this folder wrote last; None if it has followed no files."""
    try:
        return msgspec.convert(json.loads(read_below(folder.root, EVENT_POSITIONS)), TailPositions)
    except (OSError, ValueError):
        return None


def _stream_bytes(folder: ReplicaDir) -> int:
    try:
        return os.stat(folder.streams / PRINTED_STREAM).st_size
    except OSError:
        return 0


class TensorBoardTail:
    """Follows the event files of a run in a thread of its own: large files never delay its supervision.

    Files that are in the folder of the run when this is created do not count: they came with the code. logs:
    a folder outside of it where the run writes event files. Files in such a folder count if a process of the
    run opened them. A process with startup hooks reports their paths in the file `EVENT_FILES`. hidden: the
    folder with the files of all runs, of which this run may read only its own. continued_places: the paths
    of runs that this one continues, which lead to its own files for its processes only. metric_lines: see
    `OutputMetrics`, which is followed as well. resume: where a dead replica stopped, see `read_positions`.
    """

    def __init__(
        self,
        folder: ReplicaDir,
        logs: str | None = None,
        *,
        hidden: Path | None = None,
        continued_places: Sequence[Path] = (),
        metric_lines: Sequence[str] = (),
        resume: TailPositions | None = None,
    ) -> None:
        self._folder = folder
        self._hidden = None if hidden is None else os.path.realpath(hidden) + os.sep
        self._own = os.path.realpath(folder.root.parent) + os.sep
        self._continued = {
            os.path.join(parent, place.name, "")
            for place in continued_places
            for parent in (str(place.parent), os.path.realpath(place.parent))
        }
        self._ignored_paths: set[str] = set()
        self._work = EventFiles(folder.work, is_own=self._counts, may_read=self._may_read)
        self._outside: list[EventFiles] = []
        self._reported = EventFiles(folder.root / "none", may_read=self._may_read)
        self._printed = OutputMetrics(folder, metric_lines) if metric_lines else None
        self._series: dict[str, int] = {}
        self._reported_paths: set[str] = set()
        self._reported_lines = 0
        self._known: Counter[bytes] = Counter()  # points that a dead replica had already appended
        self._written_positions = b""
        self._stop = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
        if resume is not None:
            self._resume(resume)
            return
        self._work.skip_existing(appended=True)
        logs = None if logs is None else self._outer_path(logs)
        if logs and not Path(folder.work, logs).resolve().is_relative_to(folder.work.resolve()):
            shared = EventFiles(Path(folder.work, logs), is_own=self._is_own, may_read=self._may_read)
            shared.skip_existing(appended=False)
            self._outside.append(shared)
        with suppress(OSError):  # on a full disk, a replica that adopts this one reads no event files
            self._write_positions()

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout_s: float) -> int:
        """Reads the rest of the files for at most this time. Returns how many bytes remain unread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return 0
        self._abandoned = True
        self._thread.join(
            _RETRY_INTERVAL_S
        )  # it ends after its current block, unless the disk does not answer
        return sum(files.unread_bytes() for files in self._sources())

    def media_sentence(self) -> str:
        """Returns a sentence about what the event files contain besides numbers; "" for numbers only. Called
        after `finish`."""
        media: dict[str, set[str]] = {}
        for files in (self._work, *self._outside, self._reported):
            for kind, tags in files.media().items():
                media.setdefault(kind, set()).update(tags)
        parts = []
        for kind, tags in sorted(media.items()):
            more = f" and {len(tags) - _MAX_NAMED_TAGS} more" if len(tags) > _MAX_NAMED_TAGS else ""
            parts.append(f"{kind} ({', '.join(sorted(tags)[:_MAX_NAMED_TAGS])}{more})")
        return f"of TensorBoard, these stay in its event files: {'; '.join(parts)}" if parts else ""

    def poll(self) -> None:
        """Appends new points to the stream."""
        self._follow_reported()
        records: list[bytes] = []
        for files in self._sources():
            for name, step, wall_time, value in files.poll():
                if self._abandoned:
                    return
                series = self._series.get(name)
                if series is None:
                    text = name.encode(errors="replace")[:_MAX_NAME_LENGTH].decode(errors="ignore")
                    if not text or len(self._series) >= _MAX_SERIES:
                        continue
                    records.append(pack_definition(text))
                    series = self._series[name] = series_id(text)
                if self._known and self._is_known(series, step, wall_time, value):
                    continue
                records.append(pack_point(POINT, series, max(step, _MIN_STEP), wall_time, value))
                if len(records) >= _FLUSH_RECORDS:
                    self._flush(records)
        self._flush(records)
        self._write_positions()

    def _write_positions(self) -> None:
        """Writes how far the files were read, after their points. Raises OSError."""
        positions = TailPositions(
            _stream_bytes(self._folder),
            _SourcePositions.of(self._work),
            [_SourcePositions.of(files) for files in self._outside],
            _SourcePositions.of(self._reported),
        )
        # JSON in ASCII: a path may have bytes that are not UTF-8
        data = json.dumps(msgspec.to_builtins(positions)).encode()
        if data != self._written_positions:
            write_below(self._folder.root, EVENT_POSITIONS, data)
            self._written_positions = data

    def _resume(self, positions: TailPositions) -> None:
        """Continues at these positions. The stream may already have points behind them."""
        self._work.restore(positions.work.files, positions.work.prefixes)
        self._reported.restore(positions.reported.files, positions.reported.prefixes)
        for source in positions.outside:
            files = EventFiles(source.root, is_own=self._is_reported, may_read=self._may_read)
            files.restore(source.files, source.prefixes)
            self._outside.append(files)
        if _stream_bytes(self._folder) > positions.stream_bytes:
            path = f"streams/{PRINTED_STREAM}"
            with os.fdopen(open_below(self._folder.root, path, os.O_RDONLY), "rb") as stream:
                stream.seek(positions.stream_bytes)
                data = stream.read(_MAX_KNOWN_BYTES)
            with suppress(IntegrityError):
                self._known.update(
                    _KEY.pack(each.series, each.step, each.time, each.value)
                    for each in read_records(data, {})
                    if isinstance(each, Point)
                )

    def _is_known(self, series: int, step: int, wall_time: float, value: float) -> bool:
        key = _KEY.pack(series, max(step, _MIN_STEP), wall_time, value)
        self._known[key] -= 1
        if self._known[key] < 0:
            del self._known[key]
            return False
        return True

    def _run(self) -> None:
        is_last = False
        while not is_last and not self._abandoned:
            is_last = self._stop.is_set()
            if is_last and self._printed is not None:
                self._printed.end()
            wait_s = _POLL_INTERVAL_S
            try:
                self.poll()
            except (OSError, ValueError) as error:
                log(f"tensorboard: {error}")
                wait_s = _RETRY_INTERVAL_S
            if not is_last:
                self._stop.wait(wait_s)

    def _flush(self, records: list[bytes]) -> None:
        if records:
            self._folder.append(PRINTED_STREAM, b"".join(records))
            records.clear()

    def _sources(self) -> Iterator[EventFiles | OutputMetrics]:
        if self._printed is not None:
            yield self._printed
        yield self._work
        yield from self._outside
        yield self._reported

    def _follow_reported(self) -> None:
        """Follows the files that processes of the run opened outside of its folder."""
        try:
            lines = read_below(self._folder.root, EVENT_FILES).splitlines()
        except OSError:
            return
        work = f"{os.path.realpath(self._folder.work)}{os.sep}"
        for line in lines[self._reported_lines :]:
            self._reported_lines += 1
            try:
                value = json.loads(line)
                is_ignored = isinstance(value, dict)
                path = os.path.realpath(self._outer_path(value["ignored"] if is_ignored else value))
            except (ValueError, TypeError, KeyError, AttributeError, OSError):
                continue
            if is_ignored:
                self._ignored_paths.add(path)
                continue
            self._reported_paths.add(path)
            roots = (work, *(f"{os.path.realpath(files.root)}{os.sep}" for files in self._outside))
            if EVENT_FILE_NAME.search(os.path.basename(path)) and not path.startswith(roots):
                self._reported.follow(path)

    def _outer_path(self, path: str) -> str:
        """Returns the path outside of the private mounts of the run's processes."""
        place = next((place for place in self._continued if path.startswith(place)), None)
        return path if place is None else self._own + path.removeprefix(place)

    def _may_read(self, path: str) -> bool:
        """Returns whether a file is outside of the home, or the run's own: the script sees no other one."""
        if not self._counts(path):
            return False
        return self._hidden is None or not path.startswith(self._hidden) or path.startswith(self._own)

    def _counts(self, path: str) -> bool:
        """Returns whether a file is not only of another rank. Names of tensorboardX have no process: in one
        second, all ranks open the same file."""
        real = os.path.realpath(path)
        return real not in self._ignored_paths or real in self._reported_paths

    def _is_reported(self, path: str) -> bool:
        return self._counts(path) and os.path.realpath(path) in self._reported_paths

    def _is_own(self, path: str) -> bool:
        """Returns whether a process of this run opened a file of a folder that other runs write to as well:
        as reported, else by the process in its name, which TensorFlow and PyTorch write."""
        if not self._counts(path):
            return False
        if self._is_reported(path):
            return True
        writer = _WRITER_PID.fullmatch(os.path.basename(path))
        if writer is None or not os.path.exists(f"/proc/{writer[1]}"):
            return not self._reported_paths
        return process_tree.is_descendant(int(writer[1]), os.getpid())
