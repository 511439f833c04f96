"""Safe points: where all processes of a gang stop, or apply commands, at the same iteration. Standard library
only.

No process may wait at a safe point for a process that waits for it inside its next iteration, as in a
collective operation. So each process publishes how many iterations it has passed. When a stop is requested
or a command arrives, it parks at its safe point. It runs one more iteration whenever another process has
already passed that point. The gang agrees, under a lock, on the iteration at which all are parked. There all
stop, or all apply the commands up to the same number. No process waits for another that has ended or has left
its loop: that one applies the commands at its next safe point. The same holds for independent processes,
such as services and evaluators, which wait for none and which no other waits for. A process that was started
again repeats iterations, while others may wait for it or not. It and the others therefore wait for each other
only briefly.

The safe points of a script without loops are the points that it logs. A gang may not log the same points in
all its processes, so there no process waits long for another: a command is refused in place of that. Such a
script is not stopped at a safe point, and a process with a loop does not wait for it. The shared state is
files of eight-byte cells in a folder that all processes see. Each process holds a lock on its own file, which
ends with it:

    turns/lock               one cell: the iteration at which all stop
    turns/commands           see `command_file.py`
    turns/<rank>-<pid>       per process: iterations passed; the iteration it is parked at, or 0;
                             whether its checkpoint is saved; whether it has left its loop;
                             whether it was started again
    turns/log-<rank>-<pid>   the same of a process that logs without a loop
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from weakref import WeakSet

from hopyard.errors import is_disk_full
from hopyard.private_files import make_folder, open_file, reserve_file_space, write_to_reserved_space
from hopyard.sdk.command_file import SAFE_POINTS_DIR as SAFE_POINTS_DIR
from hopyard.sdk.command_file import CommandFile, CommandLine, map_cells

SAFE_POINT_EXIT_FILE = "left.json"
SAFE_POINT_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
DISK_FULL_REASON = "the disk was full"
_STOP_FILE = "stop"  # domain.replica.STOP_FILE, which would be slow to import
_TIME_LIMIT_KIND = "time-limit"  # domain.attempt.ExitKind.TIME_LIMIT
_STOP_POLL_INTERVAL_S, _PEER_POLL_INTERVAL_S, _PEER_TIMEOUT_S = 0.02, 0.002, 2.0
_SAVE_RETRY_INTERVAL_S, _SAVE_SHARE_OF_GRACE = (
    0.2,
    0.7,
)  # of the grace period of a stop request: SIGTERM follows in its last quarter
_ITERATION_CELL, _PARKED_CELL, _SAVED_CELL, _LEFT_CELL, _RESTARTED_CELL, _CELLS = 0, 1, 2, 3, 4, 5
_LOG_PREFIX = "log-"
_MAX_FAILED_TRIES = 3  # to meet the other processes at a point that they all log
UNEVEN_LOGGING = (
    "the processes of the gang do not all log at the same steps, so they cannot act together; "
    "iterations of hop.loop are safe points of all of them"
)
_PAUSE_POLL_INTERVAL_S = 0.02
_NO_CELLS_FILES = ("lock", "commands", "commands.jsonl")


class SafePointAction(Enum):
    """What a process must do at a safe point where the gang has agreed."""

    STOP = "stop"  # save its checkpoint, call `exit_preempted`, and end
    COMMANDS = "commands"  # apply the commands of `take_commands`


class PreemptedExit(SystemExit):
    """Ends the script at a safe point. It is a SystemExit, so `except Exception` does not catch it and
    `finally` blocks run.
    """

    def __init__(self) -> None:
        super().__init__(SAFE_POINT_EXIT_CODE)


class SafePoints:
    """This process's part of the protocol. Creating it announces to the replica that this process has safe
    points.

    replica: the folder where the stop request appears. gang: the folder that all `world` processes see.
    applied: the number of the last command that this process began with; None for all so far. Other processes
    may have agreed on later ones without this one, if it was slow to begin. by_log: the safe points are
    logged points. restarted_after: an earlier process of this replica has ended, and its peers have
    continued; this one begins after so many iterations. independent: the ranks of independent processes.
    Raises OSError.
    """

    def __init__(
        self,
        replica: str,
        gang: str,
        rank: int,
        world: int,
        applied: int | None = None,
        *,
        by_log: bool = False,
        restarted_after: int | None = None,
        independent: Collection[int] = (),
    ) -> None:
        self.rank, self.pid = rank, os.getpid()
        self._replica, self._independent = replica, frozenset(independent)
        self._world = world - len(self._independent - {rank})
        self._stop, self._poll_at, self._stop_requested = os.path.join(replica, _STOP_FILE), 0.0, False
        self.at_limit = False  # whether the stop is requested because of the run's time limit
        # monotonic deadline for retries of a checkpoint that cannot be saved
        self._save_by = 0.0
        self._folder = os.path.join(gang, SAFE_POINTS_DIR)
        make_folder(self._folder, private_parent=gang)
        self._lock = open_file(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT)
        with self._locked():
            self._agreed_iteration = map_cells(self._lock, 1)
        self._commands = CommandFile(gang)
        self._peers: dict[str, _ProcessFile] = {}
        self.by_log, self._failed_tries = by_log, 0
        self._name = f"{_LOG_PREFIX if by_log else ''}{rank}-{self.pid}"
        with self._locked():
            self._own = _ProcessFile(os.path.join(self._folder, self._name), is_own=True)
            self._own_cells = self._own.cells
            # only now, so that all agree either with this process or before it
            self._applied = self._agreed = self._commands.agreed if applied is None else applied
            self._is_restarted = restarted_after is not None and not by_log
            if self._is_restarted:
                self._own_cells[_ITERATION_CELL] = restarted_after or 0
                self._own_cells[_RESTARTED_CELL] = 1
            elif restarted_after is not None:  # the points that a process logs are not counted
                self._own_cells[_ITERATION_CELL] = max(
                    (cells[_ITERATION_CELL] for _, cells in self._live_peers()), default=0
                )
        if not by_log:
            with suppress(OSError):
                reserve_file_space(Path(replica), SAFE_POINT_EXIT_FILE)

    @property
    def applied(self) -> int:
        """The number of the last command that this process has applied."""
        return self._applied

    @property
    def answers(self) -> bool:
        """Whether this process answers the commands that the gang has agreed on."""
        return self.rank in (0, self._commands.answering_rank)

    def close(self) -> None:
        """Withdraws from the protocol: no process waits for this one any more."""
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, self._name))
        self._own.close()

    def begin_loop(self) -> None:
        """Others wait for this process again."""
        self._own_cells[_LEFT_CELL] = 0

    def leave_loop(self) -> None:
        """No process waits for this one until its next loop: it may never reach another safe point."""
        self._own_cells[_LEFT_CELL] = 1

    def refuse(self, command: CommandLine, reason: str) -> None:
        """Records that no process applies a command, for those that start later."""
        with suppress(OSError):
            self._commands.refuse(command["number"], reason)

    def reach(self, *, may_stop: bool = True) -> SafePointAction | None:
        """Records the end of an iteration. Returns what this process must do before the next one, if
        anything.

        may_stop: whether the gang may stop here. All its processes must give the same value.
        """
        if self.by_log:
            if self._commands.newest <= self._applied:
                self._own_cells[_ITERATION_CELL] += 1
                return None
            return self._agree_on_iteration()
        if may_stop and not self._stop_requested:
            now = time.monotonic()
            if now >= self._poll_at:
                self._poll_at = now + _STOP_POLL_INTERVAL_S
                self._stop_requested = self._is_stop_requested()
        if not (may_stop and self._stop_requested) and self._commands.newest <= self._applied:
            self._own_cells[_ITERATION_CELL] += 1
            return None
        return self._agree_on_iteration()

    def take_commands(self) -> Sequence[CommandLine]:
        """Returns the commands to apply at this safe point, in order."""
        commands = self._commands.read(self._applied, self._agreed)
        self._applied = self._agreed
        return commands

    def wait_for_action(self, while_waiting: Callable[[], None]) -> SafePointAction | None:
        """Returns the next action of a process that is paused at this safe point, when there is one. None for
        a process that logs without a loop, when its replica is being stopped: it gets a signal.
        while_waiting: called often meanwhile."""
        while True:
            if not self.by_log:
                self._stop_requested = self._stop_requested or self._is_stop_requested()
            elif os.path.exists(self._stop):
                return None
            if (
                self._stop_requested
                or self._agreed_iteration[0]
                or max(self._commands.newest, self._commands.agreed) > self._applied
            ):
                action = self._agree_on_iteration()
                if action is not None:
                    return action
            while_waiting()
            time.sleep(_PAUSE_POLL_INTERVAL_S)

    def leave(self) -> None:
        """Ends the stay at a safe point where commands were applied: the next iteration begins."""
        self._own_cells[_PARKED_CELL], self._own_cells[_ITERATION_CELL] = (
            0,
            self._own_cells[_ITERATION_CELL] + 1,
        )

    @property
    def grace_expired(self) -> bool:
        """Whether this gang has already stopped: a process that is restarted now, as torchrun does, has
        nothing to do.
        """
        return self._agreed_iteration[0] > 0 or os.path.exists(
            os.path.join(self._replica, SAFE_POINT_EXIT_FILE)
        )

    def wait_to_save(self) -> bool:
        """Waits briefly and returns True if the grace period allows another attempt to save."""
        self._is_stop_requested()  # a second stop request may leave less time
        remaining_s = self._save_by - time.monotonic()
        if remaining_s <= 0:
            return False
        time.sleep(min(_SAVE_RETRY_INTERVAL_S, remaining_s))
        return True

    def exit_preempted(self, step: int | None, reason: str = "") -> None:
        """Notifies the replica that this process ends.

        step: the checkpoint that holds all completed iterations, if there is one. reason: why no checkpoint
        could be saved. Returns when the process of rank 0 has done the same: the other processes of a gang
        are ended soon after the first one exits.
        """
        path = os.path.join(self._replica, SAFE_POINT_EXIT_FILE)
        if self.rank == 0 or not os.path.exists(path):
            text = json.dumps(
                {"rank": self.rank, "step": step, **({"why": reason} if reason else {})}
            ).encode()
            with suppress(OSError):  # the exit code has the same meaning
                self._write_exit_file(path, text)
        self._own_cells[_SAVED_CELL] = 1
        while any(name.startswith("0-") and not cells[_SAVED_CELL] for name, cells in self._live_peers()):
            time.sleep(_PEER_POLL_INTERVAL_S)

    def _write_exit_file(self, path: str, text: bytes) -> None:
        scratch = f"{path}.{self.pid}"
        try:
            with open(scratch, "wb", opener=open_file) as file:
                file.write(text)
            os.replace(scratch, path)
        except OSError as error:
            if not is_disk_full(error):
                raise
            write_to_reserved_space(Path(self._replica), SAFE_POINT_EXIT_FILE, text)

    def _is_stop_requested(self) -> bool:
        try:
            with open(self._stop, "rb") as file:
                request = json.loads(file.read())
                self.at_limit = request.get("kind") == _TIME_LIMIT_KIND
                age_s = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
                self._save_by = time.monotonic() + request.get("grace_s", 0.0) * _SAVE_SHARE_OF_GRACE - age_s
                return bool(request.get("at_safe_point"))
        except (OSError, ValueError, AttributeError):
            return False

    def _agree_on_iteration(self) -> SafePointAction | None:
        """Parks until all processes are at this iteration, or until another one has passed it.

        Returns the agreed action in the first case, with this process still parked. Returns None in the
        second case: this one must run the next iteration as well.
        """
        iteration = self._own_cells[_ITERATION_CELL] + 1
        # in case a process has no safe points or is far behind
        deadline = time.monotonic() + _PEER_TIMEOUT_S
        self._own_cells[_PARKED_CELL] = iteration
        while True:
            with self._locked():
                # before a stop: another process may have applied them already
                if self._commands.agreed > self._applied:
                    self._agreed, self._failed_tries = self._commands.agreed, 0
                    return SafePointAction.COMMANDS
                if self._agreed_iteration[0]:
                    return SafePointAction.STOP
                peers = dict(self._live_peers()) if self._world > 1 else {}
                is_led = self.rank in self._independent and not all(
                    cells[_LEFT_CELL] for cells in peers.values()
                )
                if not self.by_log:  # its points are no iterations, and it may never log again
                    peers = {name: cells for name, cells in peers.items() if not name.startswith(_LOG_PREFIX)}
                if is_led or any(self._has_passed(iteration, cells) for cells in peers.values()):
                    self.leave()
                    return None
                is_late = time.monotonic() > deadline
                all_present = len(peers) + 1 >= self._world or (is_late and not self.by_log)
                parked = {name for name, cells in peers.items() if cells[_PARKED_CELL] == iteration}
                if all_present and all(
                    name in parked or cells[_LEFT_CELL] or (is_late and cells[_RESTARTED_CELL])
                    for name, cells in peers.items()
                ):
                    if self._stop_requested:
                        self._agreed_iteration[0] = iteration
                        return SafePointAction.STOP
                    self._agree_on_commands(iteration, [*map(_rank_of, parked), self.rank])
                    continue
                if self._is_restarted and is_late:
                    self.leave()
                    return None
                if self.by_log and is_late:
                    self._failed_tries += 1
                    if all_present and self._failed_tries < _MAX_FAILED_TRIES:
                        self.leave()
                        return None
                    for command in self._commands.read(self._applied, self._commands.newest):
                        self.refuse(command, UNEVEN_LOGGING)
                    self._agree_on_commands(iteration, [self.rank])
                    continue
            time.sleep(_PEER_POLL_INTERVAL_S)

    def _has_passed(self, iteration: int, peer: memoryview) -> bool:
        """Returns whether a peer may wait in a later iteration for this process."""
        if peer[_RESTARTED_CELL] or (self._is_restarted and peer[_LEFT_CELL]):
            return False  # its number may be another one
        return bool(peer[_ITERATION_CELL] >= iteration)

    def _agree_on_commands(self, iteration: int, ranks: Sequence[int]) -> None:
        self._commands.agree(iteration, self._commands.newest, rank=min(ranks))

    def _live_peers(self) -> Iterator[tuple[str, memoryview]]:
        """Yields the cells of every other live process that is not independent."""
        for name in os.listdir(self._folder):
            if name == self._name or name in _NO_CELLS_FILES or _rank_of(name) in self._independent:
                continue
            try:
                if name not in self._peers:
                    self._peers[name] = _ProcessFile(os.path.join(self._folder, name))
                if self._peers[name].is_live():
                    yield name, self._peers[name].cells
            except (OSError, ValueError):
                continue

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


class _ProcessFile:
    """The cells of a process, and its lock on them. Forked children close it: it ends with the process.

    is_own: creates the file of this process.
    """

    def __init__(self, path: str, *, is_own: bool = False) -> None:
        self._descriptor = open_file(path, os.O_RDWR | (os.O_CREAT if is_own else 0))
        if is_own:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self.cells = map_cells(self._descriptor, _CELLS)
            for index in range(_CELLS):  # an earlier process may have had this number
                self.cells[index] = 0
            _own_files.add(self)
        else:
            self.cells = map_cells(self._descriptor, _CELLS)

    def is_live(self) -> bool:
        """Returns whether the process of this file has not ended."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Ends the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_own_files: WeakSet[_ProcessFile] = WeakSet()


def _close_own_files() -> None:
    for file in _own_files:
        file.close()


os.register_at_fork(after_in_child=_close_own_files)


def _rank_of(name: str) -> int:
    return int(name.removeprefix(_LOG_PREFIX).partition("-")[0])
