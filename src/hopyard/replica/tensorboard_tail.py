"""Records the values of TensorBoard event files, and the metrics that a script prints."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hopyard.domain.metric_records import (
    MAX_RECORD_BYTES,
    NO_STEP,
    POINT,
    Point,
    complete_bytes,
    pack_definition,
    pack_point,
    pack_purge,
    read_records,
    series_id,
)
from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.text import escape
from hopyard.errors import IntegrityError
from hopyard.private_files import open_below, read_below, write_below
from hopyard.replica import process_tree
from hopyard.replica.hyperparameter_events import HyperparameterEvents
from hopyard.replica.media_writer import MediaWriter
from hopyard.replica.output_metrics import PRINTED_STREAM, OutputMetrics
from hopyard.replica.replica_dir import PartialWrite, ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.summary_values import EventValue, Hyperparameters, MediaValue, Scalar, SessionStart
from hopyard.replica.tfevents import EVENT_FILE_NAME, EventFiles, FilePosition

# of a replica's folder, lines of JSON: the path of each opened file, or {"ignored": path} for a file of a
# process that a launcher started beside the first one
EVENT_FILES = "event_files"
EVENT_POSITIONS = "event_positions"  # of a replica's folder, `TailPositions`
_POLL_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 5.0
_MAX_NAME_LENGTH = 1024
_MAX_NAMED_TAGS = 3  # of each kind
_MAX_WARNINGS = 20
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
    """How far the event files of a run were read. stream_bytes, media_bytes: the length of the stream of
    their points, and of the index of media."""

    stream_bytes: int
    work: _SourcePositions
    outside: list[_SourcePositions]
    reported: _SourcePositions
    media_bytes: int = 0


def read_positions(folder: ReplicaDir) -> TailPositions | None:
    """Returns the positions that the replica of this folder wrote last; None if it has followed no files."""
    try:
        # the decoder of msgspec would refuse paths with bytes that are not UTF-8
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
    `OutputMetrics`, which is followed as well. max_media_bytes: of all media of the replica, 0 for no limit.
    given_params: see `HyperparameterEvents`; None where no parameters are recorded. resume: where a dead
    replica stopped, see `read_positions`.
    """

    def __init__(
        self,
        folder: ReplicaDir,
        logs: str | None = None,
        *,
        hidden: Path | None = None,
        continued_places: Sequence[Path] = (),
        metric_lines: Sequence[str] = (),
        max_media_bytes: int = 0,
        given_params: Collection[str] | None = None,
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
        self._unwritten = b""  # records of points that a full disk rejected
        self._media = MediaWriter(
            folder, max_media_bytes, self._warn, known_bytes=None if resume is None else resume.media_bytes
        )
        self._params = None if given_params is None else HyperparameterEvents(folder, given_params)
        self._warned: set[str] = set()
        self._stop, self._abandoned = threading.Event(), threading.Event()
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
        """Reads the rest of the files for at most this time. Returns how many bytes remain unread, or could
        not be written."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return 0
        self._abandoned.set()
        self._thread.join(
            _RETRY_INTERVAL_S
        )  # it ends after its current block, unless the disk does not answer
        unread_bytes = sum(files.unread_bytes() for files in self._sources())
        return unread_bytes + len(self._unwritten) + self._media.queued_bytes

    def unsupported_sentence(self) -> str:
        """Returns a sentence about the values that are not read; "" if there are none. Called after
        `finish`."""
        unsupported: dict[str, set[str]] = {}
        for files in (self._work, *self._outside, self._reported):
            for kind, tags in files.unsupported().items():
                unsupported.setdefault(kind, set()).update(tags)
        parts = []
        for kind, tags in sorted(unsupported.items()):
            more = f" and {len(tags) - _MAX_NAMED_TAGS} more" if len(tags) > _MAX_NAMED_TAGS else ""
            parts.append(f"{kind} ({', '.join(sorted(tags)[:_MAX_NAMED_TAGS])}{more})")
        return f"of TensorBoard, these stay in its event files: {'; '.join(parts)}" if parts else ""

    def dropped_sentence(self) -> str:
        """Returns a sentence about the media over the limit; "" if there are none. Called after `finish`."""
        count = self._media.dropped
        return f"{count} images and other media of TensorBoard are left out: over the limit" if count else ""

    def poll(self) -> None:
        """Appends new points, media and parameters to the streams. Raises OSError: what is read already is
        written by the next call, before anything else is read."""
        self._write()
        self._follow_reported()
        for files in self._sources():
            for values in files.poll():
                self._add(values)
                self._write()
                if self._abandoned.is_set():
                    return
        self._write_positions()

    def _add(self, values: list[EventValue]) -> None:
        records: list[bytes] = []
        for value in values:
            if isinstance(value, Scalar):
                self._add_point(value, records)
            elif isinstance(value, MediaValue):
                self._media.add(value)
            elif isinstance(value, SessionStart):
                self._add_purges(value, records)
            elif isinstance(value, Hyperparameters):
                if self._params is not None:
                    self._params.add(value.values)
            else:
                self._warn(value.tag, value.reason)
        self._unwritten += b"".join(records)

    def _add_point(self, scalar: Scalar, records: list[bytes]) -> None:
        name, step, wall_time, value = scalar
        series = self._series.get(name)
        if series is None:
            text = name.encode(errors="replace")[:_MAX_NAME_LENGTH].decode(errors="ignore")
            if not text or len(self._series) >= _MAX_SERIES:
                return
            records.append(pack_definition(text))
            series = self._series[name] = series_id(text)
        if not self._is_known(series, step, wall_time, value):
            records.append(pack_point(POINT, series, max(step, _MIN_STEP), wall_time, value))

    def _add_purges(self, start: SessionStart, records: list[bytes]) -> None:
        step = max(start.step, _MIN_STEP)
        for tag in start.tags:
            series = self._series.get(tag)
            if series is not None and not self._is_known(series, step, 0.0, math.inf):
                records.append(pack_purge(series, step))

    def _warn(self, name: str, reason: str) -> None:
        """Warns once per name on the script's stderr."""
        if name in self._warned or len(self._warned) >= _MAX_WARNINGS:
            return
        self._warned.add(name)
        subject = f"`{escape(name[:80])}`: " if name else ""
        with suppress(OSError):
            text = f"hopyard: warning: TensorBoard: {subject}{escape(reason)}\n"
            self._folder.append("stderr", text.encode(errors="replace"))

    def _write(self) -> None:
        """Writes what was read. Raises OSError."""
        if self._unwritten:
            try:
                self._folder.append(PRINTED_STREAM, self._unwritten)
            except PartialWrite as error:
                self._unwritten = self._unwritten[error.written :]
                raise
            self._unwritten = b""
        self._media.write()
        if self._params is not None:
            self._params.write()

    def _write_positions(self) -> None:
        """Writes how far the files were read, after their points. Raises OSError."""
        positions = TailPositions(
            _stream_bytes(self._folder),
            _SourcePositions.of(self._work),
            [_SourcePositions.of(files) for files in self._outside],
            _SourcePositions.of(self._reported),
            self._media.index_bytes(),
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
            self._read_known(positions.stream_bytes)

    def _read_known(self, begin: int) -> None:
        """Reads the points behind this offset of the stream. Removes a part of one at the end, which a full
        disk left."""
        descriptor = open_below(self._folder.root, f"streams/{PRINTED_STREAM}", os.O_RDWR)
        with os.fdopen(descriptor, "r+b") as stream:
            stream.seek(begin)
            data = stream.read(_MAX_KNOWN_BYTES)
            complete = complete_bytes(data)
            if 0 < len(data) - complete < MAX_RECORD_BYTES and len(data) < _MAX_KNOWN_BYTES:
                stream.truncate(begin + complete)
        with suppress(IntegrityError):
            self._known.update(
                _KEY.pack(each.series, each.step, each.time, each.value)
                if isinstance(each, Point)
                else _KEY.pack(each.series, each.step, 0.0, math.inf)
                for each in read_records(data[:complete], {})
                if not isinstance(each, int)
            )

    def _is_known(self, series: int, step: int, wall_time: float, value: float) -> bool:
        if not self._known:
            return False
        key = _KEY.pack(series, max(step, _MIN_STEP), wall_time, value)
        self._known[key] -= 1
        if self._known[key] < 0:
            del self._known[key]
            return False
        return True

    def _run(self) -> None:
        while not self._abandoned.is_set():
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
            elif not self._has_unwritten() or not self._folder.streams.is_dir():
                return
            else:  # the disk may have space again before the timeout
                self._abandoned.wait(_POLL_INTERVAL_S)

    def _has_unwritten(self) -> bool:
        params = self._params is not None and not self._params.is_empty
        return bool(self._unwritten) or self._media.queued_bytes > 0 or params

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


def follow_event_files(
    folder: ReplicaDir,
    spec: ReplicaSpec,
    continued_places: Sequence[Path],
    logs: str | None = None,
    *,
    has_view: bool,
    resume: TailPositions | None = None,
) -> TensorBoardTail:
    """Returns the tail of a replica, with the limits of its spec. has_view: its script does not see the files
    of other runs."""
    launch, node = spec.launch, spec.node
    return TensorBoardTail(
        folder,
        logs,
        hidden=Path(node.home) if has_view else None,
        continued_places=continued_places if has_view else (),
        metric_lines=launch.metric_lines if resume is None else (),
        max_media_bytes=node.max_media_bytes,
        # those that the trials of a study write are not parameters of its run
        given_params=launch.params if launch.rank == 0 and launch.study is None else None,
        resume=resume,
    )
