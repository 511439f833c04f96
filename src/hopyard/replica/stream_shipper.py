"""Sends a replica's data to the server: append-only streams by offset, status, heartbeat (design page 0001,
section 5).

Everything is on the local disk before it is sent, and the server reports what it holds. A server that
disappears, loses its newest bytes or returns at another address therefore costs time, never bytes.
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
from hopyard.domain.replica import STOP_SIGNALS
from hopyard.domain.stream_limits import MEDIA_STREAM, OUTPUT_INDEX_STREAM, STREAMS
from hopyard.errors import HopyardError, IntegrityError, NotFound, RunEnded, ServerUnavailable
from hopyard.private_files import open_below
from hopyard.replica.command_receiver import CommandReceiver
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection
from hopyard.sdk.output_limit import OutputLimit
from hopyard.sdk.report_limit import ReportLimit

MAX_SYNC_BYTES = 4 * 1024**2
# on average: a script with constant output must keep its CPU for computing; short bursts are allowed
SYNC_INTERVAL_S = 0.2
SYNC_BURST = 8
HEARTBEAT_INTERVAL_S = 5.0
# the first poll for a script's output, and the backoff of later polls
_FIRST_POLL_INTERVAL_S, _FIRST_BACKOFF_FACTOR = 0.004, 1.3
# the same after each output: the delay is not noticeable, and each poll takes time from the script
_POLL_INTERVAL_S, _BACKOFF_FACTOR = 0.02, 2.0
_MAX_POLL_INTERVAL_S = 0.1  # the longest interval between polls of the streams
_RETRY_DELAY_RANGE_S = (0.05, 1.0)
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # the granularity that a folder's time stamp may have
_REQUEST_TIMEOUT_S = 30.0
# For a replica that was requested to end, while the server answers but accepts no more data.
DISK_FULL_TIMEOUT_S, REJECTED_TIMEOUT_S = 5.0, 10.0


@dataclass(slots=True)
class _Stream:
    """descriptor: -1 until the file exists. size: at the last poll. acknowledged: bytes that the server
    holds. incomplete_bytes: how many bytes after these belong to a partial record. released_to: the offset up
    to which disk blocks of dropped data were released."""

    descriptor: int = -1
    size: int = 0
    acknowledged: int = 0
    incomplete_bytes: int = 0
    released_to: int = 0


class RateLimiter:
    """Allows an action every `every_s` seconds on average, and up to `burst` times at once after a pause."""

    def __init__(self, every_s: float, burst: int) -> None:
        self._interval_s, self._burst_s, self._next_at = every_s, (burst - 1) * every_s, 0.0

    def wait_s(self, now: float) -> float:
        """Returns how long to wait until the next action; 0 or less: now."""
        return self._next_at - self._burst_s - now

    def record(self, now: float) -> None:
        self._next_at = max(self._next_at, now) + self._interval_s


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The server's request to end the attempt. grace_s: None means the node's default. signal: as in
    `StopOrder`."""

    stop: bool = False
    preempt: bool = False
    grace_s: float | None = None
    signal: str = ""


class StreamShipper:
    """A thread that keeps the server's copy of the streams and the status up to date.

    commands: where commands to the script are stored. on_stop: called when the server requests the end of
    the attempt, and again when that request changes. on_events: called when the stream of events has grown,
    and again if it fails. before_read: called before the streams are read for a request. output: the limit
    of the script's output. reports: the limit of its metrics and events. on_limited: called with the name
    of a report stream that has passed its limit. All callbacks run in the thread.

    is_stopping: whether the attempt was requested to end; then the shipper does not wait for ever for a
    server that accepts no more data. resume: an earlier replica has shipped some data; the server's offsets
    are requested before data is sent.
    """

    def __init__(
        self,
        folder: ReplicaDir,
        server: ServerConnection,
        attempt: AttemptId,
        rank: int,
        *,
        on_stop: Callable[[StopRequest], None],
        commands: CommandReceiver,
        on_events: Callable[[], None],
        before_read: Callable[[], None] = lambda: None,
        is_stopping: Callable[[], bool] = lambda: False,
        output: OutputLimit,
        reports: ReportLimit,
        on_limited: Callable[[str], None],
        resume: bool = False,
    ) -> None:
        self._folder, self._server, self._rank = folder, server, rank
        self._path = f"/attempts/{attempt}/replicas/{rank}/sync"
        self._on_stop, self._stop_request = on_stop, StopRequest()
        self._commands = commands
        self._on_events, self._is_stopping, self._output = on_events, is_stopping, output
        self._before_read = before_read
        self._reports, self._on_limited = reports, on_limited
        self._limited: set[str] = set()  # streams of reports with a limit that was reported
        # since when the server rejects the final data
        self._rejected_since: float | None = None
        self._server_disk_full, self.discarded_bytes = False, 0
        self._streams = {name: _Stream() for name in STREAMS}
        self._files, self._scanned_at_ns = os.fspath(folder.streams), -1
        self._status = ReplicaStatus(rank, ReplicaPhase.PREPARING)
        self._sent_status: ReplicaStatus | None = None
        self._wake, self._finished = threading.Event(), threading.Event()
        self._final_status: ReplicaStatus | None = None
        self._start_lock = threading.Lock()
        self._sync_requested = False  # without data to send: the server has a command
        self._offsets_known = not resume
        self._thread = threading.Thread(target=self._run_thread, name="ship", daemon=True)

    def start(self) -> None:
        """Starts the thread; idempotent. Must not be called before the user's process is forked, unless
        preparing takes so long that it is reported."""
        with self._start_lock:
            if self._thread.ident is None:
                self._thread.start()

    def wake(self) -> None:
        """Makes the thread sync now."""
        self._sync_requested = True
        self._wake.set()

    def set_status(self, status: ReplicaStatus) -> None:
        """Sets the replica's current status."""
        self._status = status
        self._wake.set()

    def close(self, status: ReplicaStatus) -> None:
        """Ships all remaining bytes and this status as the final one. Returns when the server has it, however
        long that takes."""
        self._final_status = status
        self._wake.set()
        self.start()
        self._finished.wait()

    # -- in the thread ---------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        first_pause, backoff = _FIRST_POLL_INTERVAL_S, _FIRST_BACKOFF_FACTOR
        pause_s, synced_at, retry_delay_s, rate = (
            first_pause,
            0.0,
            _RETRY_DELAY_RANGE_S[0],
            RateLimiter(SYNC_INTERVAL_S, SYNC_BURST),
        )
        while not self._finished.is_set():
            now = time.monotonic()
            # Read first: only the bytes pending after the close show whether a sync can be the last. Limited
            # streams add their final part then.
            closing = self._final_status
            try:
                pending = self._pending_bytes()
            except OSError as error:  # no free descriptors: the streams are polled again later
                self._on_sync_error(error)
                self._wake.wait(_RETRY_DELAY_RANGE_S[1])
                self._wake.clear()
                continue
            rate_wait_s = rate.wait_s(now)
            if rate_wait_s > 0 and not closing and pending < MAX_SYNC_BYTES:
                # data that arrives meanwhile must wait as well, so polling is not needed
                self._wake.wait(rate_wait_s)
                self._wake.clear()
                pause_s = first_pause
                continue
            if not (
                pending
                or closing
                or self._sync_requested
                or self._status != self._sent_status
                or now - synced_at >= HEARTBEAT_INTERVAL_S
            ):
                if not self._wake.wait(min(pause_s, max(0.001, HEARTBEAT_INTERVAL_S - (now - synced_at)))):
                    pause_s = min(pause_s * backoff, _MAX_POLL_INTERVAL_S)
                self._wake.clear()
                continue
            rate.record(now)
            try:
                if self._sync(
                    final=closing is not None and pending <= MAX_SYNC_BYTES and self._offsets_known
                ):
                    pause_s = first_pause = _POLL_INTERVAL_S
                    backoff = _BACKOFF_FACTOR
                synced_at, retry_delay_s = time.monotonic(), _RETRY_DELAY_RANGE_S[0]
            except (HopyardError, OSError, ValueError) as error:
                # on any error: this thread must not end before its work is done
                self._on_sync_error(error)
                if not (self._finished.is_set() or self._server.rediscover()):
                    self._wake.wait(retry_delay_s)
                    self._wake.clear()
                    retry_delay_s = min(retry_delay_s * 2, _RETRY_DELAY_RANGE_S[1])

    def _on_sync_error(self, error: Exception) -> None:
        log(f"sync failed: {error}")
        is_rejection = not isinstance(error, (OSError, ServerUnavailable))
        if (
            self._final_status is not None
            and is_rejection
            and self._is_stopping()
            and self._has_been_rejected_for(REJECTED_TIMEOUT_S)
        ):
            log("the server rejects the remaining data: the attempt ends without it")
            self._finished.set()
        if self._final_status is not None and (
            isinstance(error, (NotFound, RunEnded)) or not self._folder.exists()
        ):
            # the run has ended, or it or its home was deleted: no more data is accepted
            self._finished.set()
        elif isinstance(error, RunEnded):
            # it was ended by another component: this replica's work is useless
            self._apply_stop_request(StopRequest(True))

    def _has_been_rejected_for(self, timeout_s: float) -> bool:
        now = time.monotonic()
        if self._rejected_since is None:
            self._rejected_since = now
        return now - self._rejected_since > timeout_s

    def _discard_if_server_disk_full(self) -> None:
        """The server's disk is full and the attempt was requested to end: it ends without the rest of its
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
            exit = self._final_status.exit
            reason = (
                f"{exit.reason}; the last {self.discarded_bytes} bytes of its output are lost: the "
                "server's disk is full"
            )
            self._final_status = replace(self._final_status, exit=replace(exit, reason=reason))

    def _pending_bytes(self) -> int:
        """Returns how many bytes the server still needs."""
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
            missing_bytes = self._limited_size(name, stream, size) - stream.acknowledged
            if missing_bytes > 0 and (missing_bytes != stream.incomplete_bytes or self._final_status):
                total += missing_bytes
        return total

    def _limited_size(self, name: str, stream: _Stream, size: int) -> int:
        """Returns the size that the server's copy should have, and releases the disk blocks of
        dropped data."""
        ended = self._final_status is not None
        if self._reports.applies(name, size):
            return self._limited_report_size(name, stream, size, ended=ended)
        if not ended:
            try:
                stream.released_to = self._output.release_disk_blocks(
                    name, f"{self._files}/{name}", size, stream.released_to
                )
            except OSError as error:
                stream.released_to = size
                log(f"{name} keeps its disk space until the end: {error.strerror}")
        return self._output.shipped_size(name, stream.descriptor, size, ended=ended)

    def _limited_report_size(self, name: str, stream: _Stream, size: int, *, ended: bool) -> int:
        if stream.size != size and name == "events":
            return stream.acknowledged  # its checkpoint events have not been read yet
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
        except OSError as error:
            log(f"newest values of {name} are not stored: {error.strerror}")
            return max(stream.acknowledged, self._reports.readable_bytes(name, stream.descriptor))
        if name not in self._limited:
            self._limited.add(name)
            self._on_limited(name)
        return length

    def _notify_events(self) -> bool:
        """Calls `on_events` and returns whether it succeeded."""
        try:
            self._on_events()
        except (OSError, ValueError) as error:
            log(f"skipped: {error}")
            return False
        return True

    def _open_new_streams(self) -> None:
        """Opens streams that were created since the last poll. Without new ones the folder's time stamp is
        unchanged."""
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
        # A stream created in the same clock tick as this poll would not change the stamp, so a recent stamp
        # is not trusted.
        self._scanned_at_ns = changed_ns if time.time_ns() - changed_ns > _TIMESTAMP_GRANULARITY_NS else -1

    def _segments(self) -> tuple[list[dict[str, str | int]], list[bytes]]:
        heads: list[dict[str, str | int]] = []
        parts: list[bytes] = []
        remaining = MAX_SYNC_BYTES if self._offsets_known and not self.discarded_bytes else 0
        # Small streams go first: a flood of output delays no metric and no event.
        for name in reversed(STREAMS):
            stream = self._streams[name]
            if stream.descriptor < 0 or remaining <= 0:
                continue
            data = self._read(name, stream, remaining)
            if not self._final_status:
                # On a full disk the script removes its partial record. Shipped bytes can never change, so a
                # partial record is not shipped.
                record_bytes = complete_record_bytes(name, data)
                if not record_bytes and len(data) == remaining:
                    record_bytes = remaining  # a record as large as one whole sync
                stream.incomplete_bytes = len(data) - record_bytes
                data = data[:record_bytes]
            if data:
                heads.append({"stream": name, "offset": stream.acknowledged, "size": len(data)})
                parts.append(data)
                remaining -= len(data)
        return heads, parts

    def _read(self, name: str, stream: _Stream, count: int) -> bytes:
        if self._reports.covers(name):
            return self._reports.read(name, stream.descriptor, stream.acknowledged, count)
        return self._output.read(
            name, stream.descriptor, stream.acknowledged, count, ended=self._final_status is not None
        )

    def _sync(self, *, final: bool) -> bool:
        """Sends one request. Returns whether the script wrote data, so more may follow soon. The replica's
        own samples do not count."""
        status = self._final_status if final and self._final_status is not None else self._status
        self._before_read()
        heads, parts = self._segments()
        self._sync_requested = False
        head = {
            "status": status_body(status),
            "segments": heads,
            "final": final,
        }
        if newest := self._commands.newest:  # an older server, which has no commands, would refuse the field
            head["commands"] = newest
        body = b"".join((json.dumps(head).encode(), b"\n", *parts))
        client = self._server.client
        with client.open("POST", self._path, body=body, timeout_s=_REQUEST_TIMEOUT_S) as response:
            answer = json.loads(response.read())
        self._sent_status = status
        self._apply_response(answer)
        self._discard_if_server_disk_full()
        if final and not self._pending_bytes():
            self._finished.set()
        return any(head["stream"] not in ("system", OUTPUT_INDEX_STREAM) for head in heads)

    def _apply_response(self, response: Mapping[str, object]) -> None:
        offsets = response.get("offsets")
        if not isinstance(offsets, dict):
            raise IntegrityError("the server's answer has no offsets")
        for name, stream in self._streams.items():
            stream.acknowledged = int(offsets.get(name, 0))
        self._offsets_known, self._server_disk_full = True, bool(response.get("full"))
        token = response.get("token")
        if isinstance(token, str) and token:
            self._server.renew_token(token)
        grace = response.get("grace_s")
        request = StopRequest(
            bool(response.get("stop")),
            bool(response.get("preempt")),
            float(grace) if isinstance(grace, (int, float)) else None,
            signal if (signal := response.get("signal")) in STOP_SIGNALS else "",
        )
        self._apply_stop_request(request)
        commands = response.get("commands")
        if isinstance(commands, list) and commands:
            self._commands.deliver(commands)

    def _apply_stop_request(self, request: StopRequest) -> None:
        if request.stop and request != self._stop_request:
            self._stop_request = request
            self._on_stop(request)


def complete_record_bytes(stream: str, data: bytes) -> int:
    """Returns how many bytes at the beginning of `data` are whole records of this stream; all if it has no
    records or is damaged.

    Data shorter than a record does not count as damaged: a partial record that is being removed reads as
    zeros.
    """
    if stream in ("events", "system", "journal", OUTPUT_INDEX_STREAM, MEDIA_STREAM):
        return data.rfind(b"\n") + 1
    if stream in ("metrics", "tensorboard"):
        record_bytes = complete_bytes(data)
        if len(data) - record_bytes < MAX_RECORD_BYTES:
            return record_bytes
    return len(data)


def status_body(status: ReplicaStatus) -> dict[str, object]:
    """Returns a ReplicaStatus as JSON values."""
    exit = status.exit
    return {
        "rank": status.rank,
        "phase": status.phase.value,
        "detail": status.detail,
        "began_s": _elapsed_s(status.began_at),
        "ended_s": _elapsed_s(status.ended_at),
        "exit": None if exit is None else {"kind": exit.kind.value, "code": exit.code, "reason": exit.reason},
    }


def _elapsed_s(at: datetime | None) -> float | None:
    """Returns the seconds since `at`, so that the server's clock does not matter."""
    return None if at is None else max(time.time() - at.timestamp(), 0.0)
