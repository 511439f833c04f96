"""Sending what a replica says to the server: append-only streams by offset, status, heartbeat (design page
0001, section 5).

Everything is on the local disk before it is sent, and the server says what it holds: so a server that goes
away, comes back empty of the last bytes or at another address costs time, never bytes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from hopyard.domain.attempt import ReplicaPhase, ReplicaStatus
from hopyard.domain.ids import AttemptId
from hopyard.domain.metric_records import MAX_RECORD_BYTES, complete_bytes
from hopyard.domain.stream_limits import STREAMS
from hopyard.errors import HopyardError, IntegrityError, NotFound, RunEnded, ServerUnavailable
from hopyard.private_files import open_below
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection
from hopyard.sdk.output_limit import OutputLimit
from hopyard.sdk.report_limit import ReportLimit

MAX_SYNC_BYTES = 4 * 1024**2
# on average: what says something all the time leaves its processor to what computes; a few may follow each
# other at once
SYNC_INTERVAL_S = 0.2
SYNC_BURST = 8
HEARTBEAT_INTERVAL_S = 5.0
# how soon a script's first word is looked for, and how much later each time
_FIRST_POLL_INTERVAL_S, _FIRST_BACKOFF_FACTOR = 0.004, 1.3
# the same after each of its words: nobody sees the difference, and each look takes from what computes
_POLL_INTERVAL_S, _BACKOFF_FACTOR = 0.02, 2.0
_MAX_POLL_INTERVAL_S = 0.1  # how seldom the streams are looked at
_RETRY_DELAY_RANGE_S = (0.05, 1.0)
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # how coarse a folder's time stamp may be
_REQUEST_TIMEOUT_S = 30.0
# Of a replica that was asked to end, while the server answers but takes nothing of it any more.
DISK_FULL_TIMEOUT_S, REJECTED_TIMEOUT_S = 5.0, 10.0


@dataclass(slots=True)
class _Stream:
    """descriptor: -1 until the file exists. size: when it was looked at last. acknowledged: bytes that the
    server holds. incomplete_bytes: how many behind these are part of a record that is not whole yet.
    released_to: up to where what is dropped of it takes no space any more."""

    descriptor: int = -1
    size: int = 0
    acknowledged: int = 0
    incomplete_bytes: int = 0
    released_to: int = 0


class RateLimiter:
    """Lets something happen every `every_s` seconds on average, and up to `burst` times at once after a
    rest."""

    def __init__(self, every_s: float, burst: int) -> None:
        self._interval_s, self._burst_s, self._next_at = every_s, (burst - 1) * every_s, 0.0

    def wait_s(self, now: float) -> float:
        """How long until it may happen; 0 or less: now."""
        return self._next_at - self._burst_s - now

    def record(self, now: float) -> None:
        self._next_at = max(self._next_at, now) + self._interval_s


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What the server's answers say of the attempt's end. grace_s: None leaves it to the node."""

    stop: bool = False
    preempt: bool = False
    grace_s: float | None = None


class StreamShipper:
    """A thread that keeps the server's copy of the streams and the status up to date.

    on_stop is called (in the thread) when the server asks for the end of the attempt, and again when it says
    something else of it. on_events is called (in the thread) when the stream of events has grown; what it
    cannot do now, it is called for again. output: how much of what the script writes is kept. reports: how
    much of its metrics and events; on_limited is called (in the thread) with the name of a stream of these
    that has passed its limit.
    is_stopping: whether somebody wants the attempt to end; then it does not wait for ever for a server that
    takes nothing of it. resume: an earlier replica has shipped some already; the server is asked how much
    before anything is sent.
    """

    def __init__(
        self,
        folder: ReplicaDir,
        server: ServerConnection,
        attempt: AttemptId,
        rank: int,
        *,
        on_stop: Callable[[StopRequest], None],
        on_events: Callable[[], None],
        is_stopping: Callable[[], bool] = lambda: False,
        output: OutputLimit,
        reports: ReportLimit,
        on_limited: Callable[[str], None],
        resume: bool = False,
    ) -> None:
        self._folder, self._server, self._rank = folder, server, rank
        self._path = f"/attempts/{attempt}/replicas/{rank}/sync"
        self._on_stop, self._stop_request = on_stop, StopRequest()
        self._on_events, self._is_stopping, self._output = on_events, is_stopping, output
        self._reports, self._on_limited = reports, on_limited
        self._limited: set[str] = set()  # streams of reports with a limit that was reported
        # since when the server takes nothing of what is to be the last
        self._rejected_since: float | None = None
        self._server_disk_full, self.discarded_bytes = False, 0
        self._streams = {name: _Stream() for name in STREAMS}
        self._files, self._scanned_at_ns = os.fspath(folder.streams), -1
        self._status = ReplicaStatus(rank, ReplicaPhase.PREPARING)
        self._sent_status: ReplicaStatus | None = None
        self._wake, self._finished = threading.Event(), threading.Event()
        self._final_status: ReplicaStatus | None = None
        self._start_lock = threading.Lock()
        self._offsets_known = not resume
        self._thread = threading.Thread(target=self._run_thread, name="ship", daemon=True)

    def start(self) -> None:
        """Idempotent. Not before the user's process is forked, unless preparing takes long enough to be told
        of."""
        with self._start_lock:
            if self._thread.ident is None:
                self._thread.start()

    def set_status(self, status: ReplicaStatus) -> None:
        """From now on this is the replica's status."""
        self._status = status
        self._wake.set()

    def close(self, status: ReplicaStatus) -> None:
        """Ship every last byte and this status as the final word.
        Returns when the server has it, however long that takes."""
        self._final_status = status
        self._wake.set()
        self.start()
        self._finished.wait()

    # -- in the thread ---------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        soon, ease = _FIRST_POLL_INTERVAL_S, _FIRST_BACKOFF_FACTOR
        pause, heard_at, retry, pace = (
            soon,
            0.0,
            _RETRY_DELAY_RANGE_S[0],
            RateLimiter(SYNC_INTERVAL_S, SYNC_BURST),
        )
        while not self._finished.is_set():
            now = time.monotonic()
            # First: only what is pending once it closes shows whether a sync can be the last. What limits
            # keep for the end comes then.
            closing = self._final_status
            try:
                pending = self._pending_bytes()
            except OSError as failed:  # no descriptors: what the streams have is looked at again later
                self._on_sync_error(failed)
                self._wake.wait(_RETRY_DELAY_RANGE_S[1])
                self._wake.clear()
                continue
            early = pace.wait_s(now)
            if early > 0 and not closing and pending < MAX_SYNC_BYTES:
                # whatever comes meanwhile has to wait for that, so nobody need look for it
                self._wake.wait(early)
                self._wake.clear()
                pause = soon
                continue
            if not (
                pending
                or closing
                or self._status != self._sent_status
                or now - heard_at >= HEARTBEAT_INTERVAL_S
            ):
                if not self._wake.wait(min(pause, max(0.001, HEARTBEAT_INTERVAL_S - (now - heard_at)))):
                    pause = min(pause * ease, _MAX_POLL_INTERVAL_S)
                self._wake.clear()
                continue
            pace.record(now)
            try:
                if self._sync(
                    final=closing is not None and pending <= MAX_SYNC_BYTES and self._offsets_known
                ):
                    pause = soon = _POLL_INTERVAL_S
                    ease = _BACKOFF_FACTOR
                heard_at, retry = time.monotonic(), _RETRY_DELAY_RANGE_S[0]
            except (HopyardError, OSError, ValueError) as failed:
                # whatever it is: this thread must not end before its work
                self._on_sync_error(failed)
                if not (self._finished.is_set() or self._server.rediscover()):
                    self._wake.wait(retry)
                    self._wake.clear()
                    retry = min(retry * 2, _RETRY_DELAY_RANGE_S[1])

    def _on_sync_error(self, error: Exception) -> None:
        log(f"sync failed: {error}")
        refused = not isinstance(error, (OSError, ServerUnavailable))
        if (
            self._final_status is not None
            and refused
            and self._is_stopping()
            and self._has_been_rejected_for(REJECTED_TIMEOUT_S)
        ):
            log("the server rejects it: the attempt ends without it")
            self._finished.set()
        if self._final_status is not None and (
            isinstance(error, (NotFound, RunEnded)) or not self._folder.exists()
        ):
            # the run is over, or it or its whole home was deleted: nothing more is taken
            self._finished.set()
        elif isinstance(error, RunEnded):
            # it was ended elsewhere: what this replica computes is of no use
            self._apply_stop_request(StopRequest(True))

    def _has_been_rejected_for(self, timeout_s: float) -> bool:
        now = time.monotonic()
        if self._rejected_since is None:
            self._rejected_since = now
        return now - self._rejected_since > timeout_s

    def _discard_if_server_disk_full(self) -> None:
        """The server's disk is full, and the attempt was asked to end: it ends without the rest of its
        output."""
        if not self._server_disk_full:
            self._rejected_since = None
        elif (
            self._final_status is not None
            and self._final_status.exit is not None
            and self._has_been_rejected_for(DISK_FULL_TIMEOUT_S)
            and not self.discarded_bytes
        ):
            self.discarded_bytes = self._pending_bytes()
            ended = self._final_status.exit
            reason = (
                f"{ended.reason}; the last {self.discarded_bytes} bytes of its output are lost: the "
                "server's disk is full"
            )
            self._final_status = replace(self._final_status, exit=replace(ended, reason=reason))

    def _pending_bytes(self) -> int:
        """How many bytes the server lacks, and is to have."""
        if self.discarded_bytes:
            return 0
        self._open_new_streams()
        total = 0
        for name, stream in self._streams.items():
            if stream.descriptor < 0:
                continue
            size = os.fstat(stream.descriptor).st_size
            if size != stream.size and (name != "events" or self._notify_events()):
                stream.size = size
            lacking = self._limited_size(name, stream, size) - stream.acknowledged
            if lacking > 0 and (lacking != stream.incomplete_bytes or self._final_status):
                total += lacking
        return total

    def _limited_size(self, name: str, stream: _Stream, size: int) -> int:
        """How long the server's copy is to be. What a limit drops of the file is given back to the disk."""
        ended = self._final_status is not None
        if self._reports.applies(name, size):
            return self._limited_report_size(name, stream, size, ended=ended)
        if not ended:
            try:
                stream.released_to = self._output.release_disk_blocks(
                    name, f"{self._files}/{name}", size, stream.released_to
                )
            except OSError as failed:
                stream.released_to = size
                log(f"{name} keeps its disk space until the end: {failed.strerror}")
        return self._output.shipped_size(name, stream.descriptor, size, ended=ended)

    def _limited_report_size(self, name: str, stream: _Stream, size: int, *, ended: bool) -> int:
        if stream.size != size and name == "events":
            return stream.acknowledged  # nobody has read its checkpoints yet
        try:
            length = self._reports.update(
                name,
                f"{self._files}/{name}",
                stream.descriptor,
                size,
                acknowledged=stream.acknowledged,
                now=time.monotonic(),
                ended=ended,
            )
        except OSError as failed:
            log(f"newest values of {name} are not stored: {failed.strerror}")
            return stream.acknowledged
        if name not in self._limited:
            self._limited.add(name)
            self._on_limited(name)
        return length

    def _notify_events(self) -> bool:
        """Whether it was done."""
        try:
            self._on_events()
        except (OSError, ValueError) as failed:
            log(f"skipped: {failed}")
            return False
        return True

    def _open_new_streams(self) -> None:
        """Streams that are there since the last look. Without any, the folder has the time stamp that it
        had."""
        try:
            changed_ns = os.stat(self._files).st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns == self._scanned_at_ns and not self._final_status:
            return
        for name, stream in self._streams.items():
            if stream.descriptor < 0:
                with suppress(FileNotFoundError):
                    stream.descriptor = open_below(self._folder.root, f"streams/{name}", os.O_RDONLY)
        # A stream that begins in the same tick of the clock as this look would leave the stamp as it is: a
        # young one is not believed.
        self._scanned_at_ns = changed_ns if time.time_ns() - changed_ns > _TIMESTAMP_GRANULARITY_NS else -1

    def _segments(self) -> tuple[list[dict[str, str | int]], list[bytes]]:
        heads: list[dict[str, str | int]] = []
        parts: list[bytes] = []
        left = MAX_SYNC_BYTES if self._offsets_known and not self.discarded_bytes else 0
        # Small streams go first: a flood of output delays no metric and no event.
        for name in reversed(STREAMS):
            stream = self._streams[name]
            if stream.descriptor < 0 or left <= 0:
                continue
            data = self._read(name, stream, left)
            if not self._final_status:
                # On a full disk the script takes half a record back. What was shipped can never change, so it
                # is not shipped.
                whole = complete_record_bytes(name, data)
                if not whole and len(data) == left:
                    whole = left  # a record as large as all that is sent at once
                stream.incomplete_bytes = len(data) - whole
                data = data[:whole]
            if data:
                heads.append({"stream": name, "offset": stream.acknowledged, "size": len(data)})
                parts.append(data)
                left -= len(data)
        return heads, parts

    def _read(self, name: str, stream: _Stream, count: int) -> bytes:
        if self._reports.applies(name, stream.size):
            return self._reports.read(name, stream.descriptor, stream.acknowledged, count)
        return self._output.read(
            name, stream.descriptor, stream.acknowledged, count, ended=self._final_status is not None
        )

    def _sync(self, *, final: bool) -> bool:
        """Whether the script said something: more may come soon.
        The replica's own samples come when they are due."""
        status = self._final_status if final and self._final_status is not None else self._status
        heads, parts = self._segments()
        head = {"status": status_body(status), "segments": heads, "final": final}
        body = b"".join((json.dumps(head).encode(), b"\n", *parts))
        client = self._server.client
        with client.open("POST", self._path, body=body, timeout_s=_REQUEST_TIMEOUT_S) as response:
            answer = json.loads(response.read())
        self._sent_status = status
        self._apply_response(answer)
        self._discard_if_server_disk_full()
        if final and not self._pending_bytes():
            self._finished.set()
        return any(head["stream"] != "system" for head in heads)

    def _apply_response(self, response: Mapping[str, object]) -> None:
        offsets = response.get("offsets")
        if not isinstance(offsets, dict):
            raise IntegrityError("the server's answer names no offsets")
        for name, stream in self._streams.items():
            stream.acknowledged = int(offsets.get(name, 0))
        self._offsets_known, self._server_disk_full = True, bool(response.get("full"))
        token = response.get("token")
        if isinstance(token, str) and token:
            self._server.renew_token(token)
        grace = response.get("grace_s")
        word = StopRequest(
            bool(response.get("stop")),
            bool(response.get("preempt")),
            float(grace) if isinstance(grace, (int, float)) else None,
        )
        self._apply_stop_request(word)

    def _apply_stop_request(self, request: StopRequest) -> None:
        if request.stop and request != self._stop_request:
            self._stop_request = request
            self._on_stop(request)


def complete_record_bytes(stream: str, data: bytes) -> int:
    """How many bytes at the beginning of `data` are whole records of this stream; all where it has no
    records, or is damaged.

    What is shorter than a record is not taken for damage: half a record that is being taken back just now
    reads as zeros.
    """
    if stream in ("events", "system", "journal"):
        return data.rfind(b"\n") + 1
    if stream in ("metrics", "tensorboard"):
        whole = complete_bytes(data)
        if len(data) - whole < MAX_RECORD_BYTES:
            return whole
    return len(data)


def status_body(status: ReplicaStatus) -> dict[str, object]:
    """A ReplicaStatus as JSON carries it."""
    ended = status.exit
    return {
        "rank": status.rank,
        "phase": status.phase.value,
        "detail": status.detail,
        "began_s": _elapsed_s(status.began_at),
        "ended_s": _elapsed_s(status.ended_at),
        "exit": None
        if ended is None
        else {"kind": ended.kind.value, "code": ended.code, "reason": ended.reason},
    }


def _elapsed_s(at: datetime | None) -> float | None:
    """Seconds from then until now, which the server need not have the same clock for."""
    return None if at is None else max(time.time() - at.timestamp(), 0.0)
