"""Supervises the user's process from start to end: one loop over signals and deadlines."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
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

_KILLS_INTERVAL_S = 5.0
# actions due this soon run together with those due now: a wake-up takes longer than most of them
_COALESCE_WINDOW_S = 0.05
_SAFE_POINT_POLL_INTERVAL_S = 0.25  # how often a script on its way to a safe point is checked
# how long before a time limit a script is requested to save and exit; at most this share of the limit
_MAX_LIMIT_NOTICE_S, _LIMIT_NOTICE_SHARE = 60.0, 0.25
_REKILL_INTERVAL_S = (
    0.5  # after SIGKILL of the tree, before SIGKILL is repeated for an unkillable process (state D)
)


class Wakeup:
    """A descriptor that becomes readable when a signal arrives or another thread calls `notify`."""

    def __init__(self) -> None:
        self._sync_requested = False
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """From now on SIGCHLD and SIGTERM only wake up; their meaning is read from files and wait
        statuses."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGURG, self._request_sync)

    def _request_sync(self, *_: object) -> None:
        self._sync_requested = True

    def take_sync_request(self) -> bool:
        """Returns whether the engine has requested a sync since the last call."""
        requested, self._sync_requested = self._sync_requested, False
        return requested

    def notify(self) -> None:
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            pass  # the pipe is full, so a wake-up is pending

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
    """An action that is repeated beside the user's process. `action` returns in how many seconds it is due
    again."""

    due_at: float
    action: Callable[[], float]

    def run_if_due(self, now: float) -> None:
        if now < self.due_at - _COALESCE_WINDOW_S:
            return
        try:
            self.due_at = now + self.action()
        except (
            OSError,
            ValueError,
        ) as error:  # a full disk or a damaged file must not end the user's process
            log(f"skipped: {error}")
            self.due_at = now + 5.0


class _MemoryCounter:
    """Whether the kernel killed processes of this node for lack of memory in the last seconds. Its counter
    has those of all runs, so that a kill long before explains nothing."""

    def __init__(self, now: float) -> None:
        self._earlier = self._newest = (now, read_node_oom_kills())

    def sample(self, now: float) -> None:
        """Reads the counter at most every few seconds."""
        if now - self._newest[0] >= _KILLS_INTERVAL_S:
            self._earlier, self._newest = self._newest, (now, read_node_oom_kills())

    def any(self) -> bool:
        return read_node_oom_kills() > self._earlier[1]


@dataclass(slots=True)
class Supervisor:
    """Watches one process until it and all its descendants have ended.

    time_limit_s counts from `limit_began_at`, by the monotonic clock, and is enforced. Before the limit the
    process is requested to save and exit; it gets SIGTERM at most `grace_s` before, and SIGKILL at the
    limit. report_limit: called with a message when the limit approaches. request_sync: called when the
    engine requests a sync with the server. gang_folder: where processes with safe points register.
    output_begins: where the output of the process begins in its streams. on_reaped: called with the pid and
    status of each child. on_end: called when the process has ended, before its remaining processes are ended.
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
    request_sync: Callable[[], None]
    on_reaped: Callable[[int, int], None]
    on_end: Callable[[], None]
    periodic: list[PeriodicAction] = field(default_factory=list)
    server_stop: StopOrder | None = None
    output_begins: Mapping[str, int] = field(default_factory=dict)
    limit_began_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0  # Unix seconds, of the process and of those that it left behind
    _termination: Termination = field(init=False)
    _status: int | None = None

    def __post_init__(self) -> None:
        self._termination = Termination(
            self.folder, self.pid, self.gang_folder, self.grace_s, self.output_begins
        )

    def run(self) -> Exit:
        """Returns when the process and all its descendants have ended."""
        started_at, termination = time.monotonic(), self._termination
        node_kills = _MemoryCounter(started_at)
        limit_s = math.inf if self.time_limit_s is None else self.time_limit_s
        limit_at, notice_at = (
            self.limit_began_at + limit_s,
            self.limit_began_at + limit_s - min(_MAX_LIMIT_NOTICE_S, limit_s * _LIMIT_NOTICE_SHARE),
        )
        memory_at = started_at + self.memory.check_after_s
        while not self._reap():
            now = time.monotonic()
            node_kills.sample(now)
            self._poll_stop_order(now)
            if self.wakeup.take_sync_request():
                self.request_sync()
            if now >= memory_at:
                self._check_memory(now)
                memory_at = now + self.memory.check_after_s
            for action in self.periodic:
                action.run_if_due(now)
            if now >= notice_at and termination.exit_cause is None:
                self._request_save_before_limit(limit_s, limit_at, now)
            termination.send_sigterm_if_due(now)
            if now >= termination.kill_at:
                self._kill_tree()
                termination.kill_at = now + _REKILL_INTERVAL_S
            due = [memory_at, termination.term_at, termination.kill_at, *(p.due_at for p in self.periodic)]
            due += [notice_at] if termination.exit_cause is None else []
            due += [now + _SAFE_POINT_POLL_INTERVAL_S] if termination.awaits_safe_point else []
            self.wakeup.wait(min(due) - time.monotonic())
        self.ended_at = time.time()
        over_memory = termination.exit_cause is None and self.memory.limit > 0 and self.groups.oom_kills() > 0
        peak = self.groups.peak_bytes() if over_memory else 0
        unknown_exit_reason = self.groups.unknown_exit_reason()
        self._apply_last_preemption()
        self.on_end()
        if self._wait_for_children():
            self.ended_at = time.time()
        self._kill_tree()
        process_tree.kill_descendants(os.getpid())
        self.groups.remove()
        if over_memory:
            return Exit(ExitKind.OUT_OF_MEMORY, 137, self.memory.explain(peak))
        if unknown_exit_reason and termination.exit_cause is None:
            return Exit(ExitKind.NODE_FAULT, 125, unknown_exit_reason)
        assert self._status is not None
        return termination.exit(self._status, node_out_of_memory=node_kills.any())

    def _reap(self) -> bool:
        """Reaps every child that ended, including orphans of the user's process. Returns whether the user's
        process itself ended."""
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if child is None:
                    return self._status is not None
                # before others see its end: they may remove the files that filled the disk
                if child.si_pid == self.pid:
                    self._termination.check_disk()
                pid, status = os.waitpid(child.si_pid, 0)
            except ChildProcessError:
                return self._status is not None
            if pid == self.pid:
                self._status = status
            self.on_reaped(pid, status)

    def _poll_stop_order(self, now: float) -> None:
        order = self.folder.read_stop() or self.server_stop
        # the attempt cannot be reported any more, and another may begin
        if order is None and not self.folder.exists():
            order = StopOrder(0.0, ExitKind.LOST, "lost: the folder of its replica was removed")
        if order is not None:
            self._termination.apply_order(order, now)

    def _apply_last_preemption(self) -> None:
        """Applies the order of a preemption that the script or its peers saw before this process did: the
        script may have ended because of it."""
        order = self.folder.read_stop()
        if self._termination.exit_cause is None and order is not None and order.kind is ExitKind.PREEMPTED:
            self._termination.apply_order(order, time.monotonic())

    def _request_save_before_limit(self, limit_s: float, limit_at: float, now: float) -> None:
        """Requests a checkpoint as a preemption does: by a stop order in the folder, which a script with safe
        points reads."""
        order = StopOrder.for_time_limit(
            max(0.0, limit_at - now), f"time limit of {format_seconds(limit_s)} reached"
        )
        try:
            self.folder.request_stop(order)
        except OSError as error:
            # a full disk without reserved space: only SIGTERM reaches the script
            self._termination.stop_order_error = error.strerror or str(error)
        self._termination.apply_order(order, now)
        remaining = f"{order.grace_s:.2g} s" if order.grace_s < 10 else f"{order.grace_s:.0f} s"
        consequence = (
            "it saves a checkpoint at its next safe point and exits"
            if self._termination.awaits_safe_point
            else "it gets SIGTERM shortly before"
        )
        self.report_limit(
            f"the time limit of {format_seconds(limit_s)} is reached in {remaining}: {consequence}"
        )

    def _check_memory(self, now: float) -> None:
        reason = self.memory.check()
        if reason is not None:
            self.kill_for_memory(reason, now)

    def kill_for_memory(self, reason: str, now: float) -> None:
        """Kills the process at once because it used more than its share of memory, main or GPU, to protect
        its neighbours."""
        cause = self._termination.exit_cause
        if cause is None or cause.kind is not ExitKind.OUT_OF_MEMORY:
            self._termination.apply_limit(Exit(ExitKind.OUT_OF_MEMORY, 137, reason), now, kill_at=now)

    def _wait_for_children(self) -> bool:
        """A wrapper such as a shell script dies of the signal and leaves the real program behind. That
        program gets the signal too, and the rest of the grace period. Returns whether there was one."""
        if self._termination.exit_cause is None or not self._has_children():
            return False
        for stat in process_tree.descendants(os.getpid()):
            self._termination.signal_descendant(stat.pid)
        while self._has_children() and (remaining_s := self._termination.kill_at - time.monotonic()) > 0:
            self._poll_stop_order(time.monotonic())
            self.wakeup.wait(remaining_s)
            self._reap()
        return True

    def _kill_tree(self) -> None:
        members = (
            {stat.pid for stat in process_tree.descendants(os.getpid())} if self._has_children() else set()
        )
        process_tree.kill_processes(members | set(self.groups.pids()))

    @staticmethod
    def _has_children() -> bool:
        """Returns whether any child is left, without reaping it. Much cheaper than reading all processes."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True
