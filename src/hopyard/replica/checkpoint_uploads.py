"""Uploads complete checkpoints to the server while the run continues, in the order in which they
were saved."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import (
    Conflict,
    HopyardError,
    IntegrityError,
    MissingBlobs,
    NotFound,
    NotLeader,
    QuotaExceeded,
    ServerFault,
    ServerUnavailable,
    StorageFull,
    is_transient,
)
from hopyard.private_files import open_below, remove_below
from hopyard.replica.event_log import EventLog
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.unstored_folders import UnstoredFolders
from hopyard.replica.uploads import upload_folder

if TYPE_CHECKING:
    from hopyard.api_client import types as api

RETRY_INTERVAL_S = 1.0
# A server that answers and fails at the same request for this long will not recover by a retry.
SERVER_FAULT_TIMEOUT_S = 600.0
# Errors that are retried. NotFound and IntegrityError concern data that the server needs for the request and
# that
# the next attempt sends again. A deleted run is reported by `RunEnded`, a later attempt by a Conflict.
RETRYABLE_ERRORS = (ServerUnavailable, StorageFull, MissingBlobs, NotLeader, NotFound, IntegrityError)


@dataclass(slots=True)
class UploadTimeout:
    """Decides how long one upload is retried.

    Without a limit while the server is unavailable or has no space, unless the run must end. For
    `SERVER_FAULT_TIMEOUT_S` while the server fails by a fault of its own, for exceeded quota, for missing
    data, or for a problem of this node.
    """

    _failing_since: float | None = None

    def is_expired(self, error: Exception, *, is_stopping: bool) -> bool:
        """Returns whether to give up after this failure. is_stopping: the run was requested to end."""
        is_node_problem = not isinstance(error, RETRYABLE_ERRORS) and is_transient(error)
        if not is_node_problem and not isinstance(
            error, (ServerFault, NotFound, IntegrityError, QuotaExceeded)
        ):
            self._failing_since = None
            return isinstance(error, StorageFull) and is_stopping
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        return is_stopping or now - self._failing_since > SERVER_FAULT_TIMEOUT_S


@dataclass(slots=True)
class CheckpointUploader:
    """Follows the events of the script; a thread uploads each checkpoint that they announce.

    Only the newest stays on this node once the server has the others. server_offsets: maps offsets of the
    script's streams to those of the server's copies.
    """

    folder: ReplicaDir
    spec: ReplicaSpec
    server: ServerConnection
    unstored: UnstoredFolders
    server_offsets: Callable[[Mapping[str, int]], dict[str, int]]
    log: EventLog = field(init=False)
    _pending: deque[dict[str, Any]] = field(default_factory=deque)
    _change: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _last_uploaded: Path | None = None
    _closing: bool = False

    def __post_init__(self) -> None:
        self.log = EventLog(self.folder.streams / "events")

    def poll(self) -> None:
        """Reads new events. Cheap if there are none; may be called from any thread."""
        with self._change:
            announced = [event for event in self.log.poll() if event.get("kind") == "checkpoint"]
            if not announced:
                return
            self._pending.extend(announced)
            self._change.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, name="checkpoints", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Returns when the server has every announced checkpoint, however long that takes."""
        while self.folder.exists():
            try:
                self.poll()
                break
            except OSError as error:  # no free descriptors: the events are read later
                log(f"events cannot be read: {error}")
                time.sleep(RETRY_INTERVAL_S)
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _run_thread(self) -> None:
        while True:
            with self._change:
                while not self._pending:
                    if self._closing:
                        return
                    self._change.wait()
                event = self._pending.popleft()
            self._upload_with_retry(event)

    def _upload_with_retry(self, event: dict[str, Any]) -> None:
        timeout = UploadTimeout()
        while True:
            try:
                self._upload(event)
                return
            except (HopyardError, OSError, KeyError, ValueError, TypeError) as error:
                if isinstance(error, RETRYABLE_ERRORS) or is_transient(error):
                    log(f"checkpoint waits: {error}")
                    if not self.folder.exists():
                        return
                    if timeout.is_expired(error, is_stopping=self._is_stopping()):
                        self._skip(event, error)
                        return
                    if not self.server.rediscover():
                        with self._change:
                            self._change.wait(RETRY_INTERVAL_S)
                    continue
                if isinstance(error, Conflict):
                    return  # a later attempt started from the uploaded checkpoints
                if any(later.get("folder") == event.get("folder") for later in list(self._pending)):
                    return  # it changed because the script saved the same step again, which is sent next
                self._skip(event, error)
                return

    def _is_stopping(self) -> bool:
        """Returns whether the run must end without resuming. After a preemption or a time limit another
        attempt or a fork resumes from this checkpoint."""
        order = self.folder.read_stop()
        return order is not None and not order.requests_checkpoint

    def _skip(self, event: dict[str, Any], reason: Exception) -> None:
        self.unstored.retain(f"the checkpoint of step {event.get('step')}", self._folder_of(event), reason)

    def _folder_of(self, event: dict[str, Any]) -> Path:
        return self.folder.checkpoints / Path(str(event.get("folder"))).name

    def _open(self, folder: Path) -> int:
        return open_below(
            self.folder.root, f"{self.folder.checkpoints.name}/{folder.name}", os.O_RDONLY | os.O_DIRECTORY
        )

    def _is_in_place(self, folder: Path, descriptor: int) -> bool:
        """Returns whether this open folder still has its name."""
        try:
            current = self._open(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return os.path.samestat(os.fstat(current), os.fstat(descriptor))
        finally:
            os.close(current)

    def _upload(self, event: dict[str, Any]) -> None:
        step, folder = int(event["step"]), self._folder_of(event)
        try:
            descriptor = self._open(folder)
        except (FileNotFoundError, NotADirectoryError):
            return  # saved again at the same step, or removed by the script: there is nothing to upload
        try:
            tree = upload_folder(self.server.client, descriptor)
            if not self._is_in_place(folder, descriptor):
                return  # as above, but during the upload: some files may be missing
        finally:
            os.close(descriptor)
        launch = self.spec.launch
        body: api.CheckpointIn = {
            "run": launch.run,
            "attempt": launch.attempt,
            "rank": launch.rank,
            "step": step,
            "manifest": tree.digest,
            "size_bytes": tree.size_bytes,
            "created_at": datetime.fromtimestamp(float(event["t"]), UTC).isoformat(),
            "metrics": event.get("metrics") or {},
            "offsets": self.server_offsets(event.get("offsets") or {}),
            "kept": event.get("kept") is True,
            "best_by": str(event.get("best_by") or ""),
        }
        self.server.client.create_attempt_checkpoint(launch.attempt, body)
        previous, self._last_uploaded = self._last_uploaded, folder
        if previous is not None and previous != folder:
            # by descriptors: the script may have replaced `checkpoints` by a link during the upload
            remove_below(self.folder.root, f"{self.folder.checkpoints.name}/{previous.name}")
