"""Safe points: where a run that is to make room leaves, all processes of its gang at the same turn.
Standard library only.

No process may wait at a safe point for one that waits for it inside its next turn, as in a collective
operation. So each publishes how many turns it has passed; asked to leave, it parks at its safe point, and
goes on for one turn more whenever another one is seen to have passed that point already. All being parked at
the same turn is what they agree on, once and under a lock. What they share are files of eight-byte cells in a
folder that all see:

    turns/lock           one cell: the turn that was agreed on
    turns/<rank>-<pid>   of each process: turns passed; the turn it is parked at, or 0; whether its checkpoint
                         is saved
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hopyard.errors import is_disk_full
from hopyard.private_files import make_folder, open_file, reserve_file_space, write_to_reserved_space

SAFE_POINTS_DIR, SAFE_POINT_EXIT_FILE = "turns", "left.json"
SAFE_POINT_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
DISK_FULL_REASON = "the disk was full"
_STOP_FILE = "stop"  # domain.replica.STOP_FILE, which would be slow to import
_TIME_LIMIT_KIND = "time-limit"  # domain.attempt.ExitKind.TIME_LIMIT
_STOP_POLL_INTERVAL_S, _PEER_POLL_INTERVAL_S, _PEER_TIMEOUT_S = 0.02, 0.002, 2.0
_SAVE_RETRY_INTERVAL_S, _SAVE_SHARE_OF_GRACE = (
    0.2,
    0.7,
)  # of the grace of an order: in its last quarter comes SIGTERM
_ITERATION_CELL, _PARKED_CELL, _SAVED_CELL, _CELLS = 0, 1, 2, 3


class PreemptedExit(SystemExit):
    """Ends the script at a safe point. A SystemExit, so that `except Exception` lets it through and `finally`
    is run."""

    def __init__(self) -> None:
        super().__init__(SAFE_POINT_EXIT_CODE)


class SafePoints:
    """This process's part. replica: the folder where the order to make room appears. gang: the folder that
    its `world` processes see. Making one tells the replica that this process has safe points. Raises
    OSError."""

    def __init__(self, replica: str, gang: str, rank: int, world: int) -> None:
        self.rank, self.pid = rank, os.getpid()
        self._replica, self._world = replica, world
        self._stop, self._poll_at, self._stop_requested = os.path.join(replica, _STOP_FILE), 0.0, False
        self.at_limit = False  # whether it is asked because its time is over
        # of the monotonic clock: until when a checkpoint that cannot be saved is tried again
        self._save_by = 0.0
        self._folder = os.path.join(gang, SAFE_POINTS_DIR)
        make_folder(self._folder, private_parent=gang)
        self._lock = open_file(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT)
        with self._locked():
            self._agreed_iteration = _map_cells(self._lock)
        self._peer_cells: dict[str, memoryview] = {}
        self._name = f"{rank}-{self.pid}"
        self._own_cells = _open(os.path.join(self._folder, self._name), os.O_RDWR | os.O_CREAT)
        with suppress(OSError):
            reserve_file_space(Path(replica), SAFE_POINT_EXIT_FILE)

    def reach(self) -> bool:
        """A turn is over; whether this process is to save its checkpoint, call `leave`, and end."""
        if not self._stop_requested:
            now = time.monotonic()
            if now >= self._poll_at:
                self._poll_at = now + _STOP_POLL_INTERVAL_S
                self._stop_requested = self._is_stop_requested()
        if not self._stop_requested:
            self._own_cells[_ITERATION_CELL] += 1
            return False
        return self._world == 1 or self._agree_on_iteration()

    @property
    def grace_expired(self) -> bool:
        """Whether this gang has left already: a process that is started again now, as torchrun does, has
        nothing to do."""
        return self._agreed_iteration[0] > 0 or os.path.exists(
            os.path.join(self._replica, SAFE_POINT_EXIT_FILE)
        )

    def wait_to_save(self) -> bool:
        """Whether the grace allows another try to save, after a short wait."""
        self._is_stop_requested()  # a second order may leave less time
        left = self._save_by - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_SAVE_RETRY_INTERVAL_S, left))
        return True

    def exit_preempted(self, step: int | None, reason: str = "") -> None:
        """Tell the replica that this process leaves. step: of the checkpoint that holds all that was done,
        where there is one. reason: none could be saved.

        Returns when the process of rank 0 has done the same: what is left of a gang is ended soon after its
        first goes.
        """
        path = os.path.join(self._replica, SAFE_POINT_EXIT_FILE)
        if self.rank == 0 or not os.path.exists(path):
            text = json.dumps(
                {"rank": self.rank, "step": step, **({"why": reason} if reason else {})}
            ).encode()
            with suppress(OSError):  # the exit code says as much
                self._write_exit_file(path, text)
        self._own_cells[_SAVED_CELL] = 1
        while any(
            name.startswith("0-") and not cells[_SAVED_CELL] for name, cells in self._open_peer_cells()
        ):
            time.sleep(_PEER_POLL_INTERVAL_S)

    def _write_exit_file(self, path: str, text: bytes) -> None:
        scratch = f"{path}.{self.pid}"
        try:
            with open(scratch, "wb", opener=open_file) as file:
                file.write(text)
            os.replace(scratch, path)
        except OSError as failed:
            if not is_disk_full(failed):
                raise
            write_to_reserved_space(Path(self._replica), SAFE_POINT_EXIT_FILE, text)

    def _is_stop_requested(self) -> bool:
        try:
            with open(self._stop, "rb") as file:
                order = json.loads(file.read())
                self.at_limit = order.get("kind") == _TIME_LIMIT_KIND
                age_s = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
                self._save_by = time.monotonic() + order.get("grace_s", 0.0) * _SAVE_SHARE_OF_GRACE - age_s
                return bool(order.get("at_safe_point"))
        except (OSError, ValueError, AttributeError):
            return False

    def _agree_on_iteration(self) -> bool:
        """Park until all are at this turn (then they leave), or another one is in the next (then this one
        goes there as well)."""
        mine, turn = self._own_cells, self._own_cells[_ITERATION_CELL] + 1
        # for processes that have no safe points, or have not come so far
        patience = time.monotonic() + _PEER_TIMEOUT_S
        mine[_PARKED_CELL] = turn
        while True:
            with self._locked():
                if self._agreed_iteration[0]:
                    return True
                others = [
                    (cells[_ITERATION_CELL], cells[_PARKED_CELL]) for _, cells in self._open_peer_cells()
                ]
                if any(passed >= turn for passed, _ in others):
                    mine[_PARKED_CELL], mine[_ITERATION_CELL] = 0, turn
                    return False
                complete = len(others) + 1 >= self._world or time.monotonic() > patience
                if complete and all(parked == turn for _, parked in others):
                    self._agreed_iteration[0] = turn
                    return True
            time.sleep(_PEER_POLL_INTERVAL_S)

    def _open_peer_cells(self) -> Iterator[tuple[str, memoryview]]:
        """The cells of every other process that lives."""
        for name in os.listdir(self._folder):
            if name in ("lock", self._name):
                continue
            try:
                os.kill(int(name.partition("-")[2]), 0)
                if name not in self._peer_cells:
                    self._peer_cells[name] = _open(os.path.join(self._folder, name), os.O_RDWR)
            except (OSError, ValueError):
                continue
            yield name, self._peer_cells[name]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def _open(path: str, how: int) -> memoryview:
    descriptor = open_file(path, how)
    try:
        return _map_cells(descriptor)
    finally:
        os.close(descriptor)


def _map_cells(descriptor: int) -> memoryview:
    """The file's cells in shared memory. One is read and written in one go, so nobody sees half of a
    number."""
    if os.fstat(descriptor).st_size < 8 * _CELLS:
        # not truncated to size: a hole on a full disk would be found by a signal later
        os.pwrite(descriptor, bytes(8 * _CELLS), 0)
    return memoryview(mmap.mmap(descriptor, 8 * _CELLS)).cast("q")
