"""From the start of the user's process to its end: one loop over signals and deadlines."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder
from hopyard.replica import process_tree
from hopyard.replica.exit_reasons import format_seconds, read_node_oom_kills
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.resource_limits import MemoryLimit, ReplicaCgroups
from hopyard.replica.termination import Termination

# what is due so soon is done with what is due now: to wake up takes longer than most of it
_COALESCE_WINDOW_S = 0.05
_SAFE_POINT_POLL_INTERVAL_S = (
    0.25  # how often a script that is left to come to a safe point is asked whether it has
)
# how long before a time limit a script is asked to save and leave; at most this part of the limit
_MAX_LIMIT_NOTICE_S, _LIMIT_NOTICE_SHARE = 60.0, 0.25
_REKILL_INTERVAL_S = (
    0.5  # after SIGKILL of the tree, before an unkillable process (state D) is left to the kernel
)


class Wakeup:
    """A descriptor that becomes readable when a signal arrives or another thread calls `notify`."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """From now on SIGCHLD and SIGTERM only wake; what they mean is read from files and wait statuses."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def notify(self) -> None:
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            pass  # full of rings: it will be looked at

    def wait(self, seconds: float) -> None:
        ready = select.poll()
        ready.register(self.read_end, select.POLLIN)
        ready.poll(None if math.isinf(seconds) else max(0.0, seconds) * 1000)
        try:
            while os.read(self.read_end, 4096):
                pass
        except BlockingIOError:
            return


@dataclass(slots=True)
class PeriodicAction:
    """Something done now and then beside the user's process.
    `action` says in how many seconds it is due again."""

    due_at: float
    action: Callable[[], float]

    def run_if_due(self, now: float) -> None:
        if now < self.due_at - _COALESCE_WINDOW_S:
            return
        try:
            self.due_at = now + self.action()
        except (OSError, ValueError) as failed:  # a full disk, a broken file: the user's process matters more
            log(f"skipped: {failed}")
            self.due_at = now + 5.0


@dataclass(slots=True)
class Supervisor:
    """Watches one process until it has ended and nothing of it is left.

    time_limit_s counts from the start of `run`, and is kept: the process is asked to save and leave a while
    before, gets SIGTERM at most `grace_s` before, and SIGKILL at the limit. report_limit: is told of that
    while there is time. gang_folder: where processes with safe points show themselves.
    """

    folder: ReplicaDir
    pid: int
    groups: ReplicaCgroups
    memory: MemoryLimit
    wakeup: Wakeup
    time_limit_s: float | None
    grace_s: float
    gang_folder: Path
    report_limit: Callable[[str], None]
    periodic: list[PeriodicAction] = field(default_factory=list)
    server_stop: StopOrder | None = None
    _termination: Termination = field(init=False)
    _status: int | None = None

    def __post_init__(self) -> None:
        self._termination = Termination(self.folder, self.pid, self.gang_folder, self.grace_s)

    def run(self) -> Exit:
        """Returns when the process has exited, however it came to that, and its stragglers are gone."""
        begun, ending = time.monotonic(), self._termination
        node_kills = read_node_oom_kills()
        limit_s = math.inf if self.time_limit_s is None else self.time_limit_s
        limit_at, notice_at = (
            begun + limit_s,
            begun + limit_s - min(_MAX_LIMIT_NOTICE_S, limit_s * _LIMIT_NOTICE_SHARE),
        )
        memory_at = begun + self.memory.check_after_s
        while not self._reap():
            now = time.monotonic()
            self._poll_stop_order(now)
            if now >= memory_at:
                self._check_memory(now)
                memory_at = now + self.memory.check_after_s
            for each in self.periodic:
                each.run_if_due(now)
            if now >= notice_at and ending.exit_cause is None:
                self._request_save_before_limit(limit_s, limit_at, now)
            ending.send_sigterm_if_due(now)
            if now >= ending.kill_at:
                self._kill_tree()
                ending.kill_at = now + _REKILL_INTERVAL_S
            due = [memory_at, ending.term_at, ending.kill_at, *(p.due_at for p in self.periodic)]
            due += [notice_at] if ending.exit_cause is None else []
            due += [now + _SAFE_POINT_POLL_INTERVAL_S] if ending.awaits_safe_point else []
            self.wakeup.wait(min(due) - time.monotonic())
        over_memory = ending.exit_cause is None and self.memory.limit > 0 and self.groups.oom_kills() > 0
        peak = self.groups.peak_bytes() if over_memory else 0
        self._wait_for_children()
        self._kill_tree()
        process_tree.kill_descendants(os.getpid())
        self.groups.remove()
        if over_memory:
            return Exit(ExitKind.OUT_OF_MEMORY, 137, self.memory.explain(peak))
        assert self._status is not None
        return ending.exit(self._status, node_out_of_memory=read_node_oom_kills() > node_kills)

    def _reap(self) -> bool:
        """Take in every child that ended (orphans of the user's process are ours, too); whether the process
        itself did."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return self._status is not None
                # before it is gone for others: they may remove what filled the disk
                if ended.si_pid == self.pid:
                    self._termination.check_disk_full()
                pid, status = os.waitpid(ended.si_pid, 0)
            except ChildProcessError:
                return self._status is not None
            if pid == self.pid:
                self._status = status

    def _poll_stop_order(self, now: float) -> None:
        order = self.folder.read_stop() or self.server_stop
        # the attempt cannot be told of any more, and another may begin
        if order is None and not self.folder.exists():
            order = StopOrder(0.0, ExitKind.LOST, "lost: the folder of its replica was removed")
        if order is not None:
            self._termination.apply_order(order, now)

    def _request_save_before_limit(self, limit_s: float, limit_at: float, now: float) -> None:
        """Ask for a checkpoint as a preemption does: by an order in the folder, where a script with safe
        points looks for it."""
        order = StopOrder.for_time_limit(
            max(0.0, limit_at - now), f"time limit of {format_seconds(limit_s)} reached"
        )
        try:
            self.folder.request_stop(order)
        except OSError as failed:
            # a full disk, and no space set aside: SIGTERM is all that reaches the script
            self._termination.stop_order_error = failed.strerror or str(failed)
        self._termination.apply_order(order, now)
        left = f"{order.grace_s:.2g} s" if order.grace_s < 10 else f"{order.grace_s:.0f} s"
        end = (
            "it saves a checkpoint at its next safe point and exits"
            if self._termination.awaits_safe_point
            else "it gets SIGTERM shortly before"
        )
        self.report_limit(f"the time limit of {format_seconds(limit_s)} is reached in {left}: {end}")

    def _check_memory(self, now: float) -> None:
        reason = self.memory.check()
        if reason is not None:
            self.kill_for_memory(reason, now)

    def kill_for_memory(self, reason: str, now: float) -> None:
        """It used more than its part, of whichever memory: it is killed at once, for its neighbours' sake."""
        verdict = self._termination.exit_cause
        if verdict is None or verdict.kind is not ExitKind.OUT_OF_MEMORY:
            self._termination.apply_limit(Exit(ExitKind.OUT_OF_MEMORY, 137, reason), now, kill_at=now)

    def _wait_for_children(self) -> None:
        """A wrapper such as a shell script dies of SIGTERM and leaves the real program behind: that one is
        asked as well, and has what is left of the grace."""
        if self._termination.exit_cause is None or not self._has_children():
            return
        for stat in process_tree.descendants(os.getpid()):
            try:
                os.kill(stat.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                continue
        while self._has_children() and (left := self._termination.kill_at - time.monotonic()) > 0:
            self._poll_stop_order(time.monotonic())
            self.wakeup.wait(left)
            self._reap()

    def _kill_tree(self) -> None:
        members = (
            {stat.pid for stat in process_tree.descendants(os.getpid())} if self._has_children() else set()
        )
        process_tree.kill_processes(members | set(self.groups.pids()))

    @staticmethod
    def _has_children() -> bool:
        """Whether any child is left, without reaping it.
        Costs nothing, unlike looking through all processes."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True
