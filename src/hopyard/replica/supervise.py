"""From the start of the user's process to its end: one loop over signals and deadlines."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder
from hopyard.replica import tree
from hopyard.replica.diary import say
from hopyard.replica.folder import Folder
from hopyard.replica.limits import Groups, MemoryWatch
from hopyard.replica.reasons import TIME_LIMIT_CODE, code_of, exit_of, node_oom_kills, seconds_in_words

_LAST_WORDS_S = 0.5  # after SIGKILL of the tree, before an unkillable process (state D) is left to the kernel


class Wakeup:
    """A descriptor that becomes readable when a signal arrives or another thread calls `ring`."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """From now on SIGCHLD and SIGTERM only wake; what they mean is read from files and wait statuses."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def ring(self) -> None:
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
class Periodic:
    """Something done now and then beside the user's process. `act` says in how many seconds it is due again."""

    due_at: float
    act: Callable[[], float]

    def run_if_due(self, now: float) -> None:
        if now < self.due_at:
            return
        try:
            self.due_at = now + self.act()
        except (OSError, ValueError) as failed:  # a full disk, a broken file: the user's process matters more
            say(f"skipped: {failed}")
            self.due_at = now + 5.0


@dataclass(slots=True)
class Supervisor:
    """Watches one process until it has ended and nothing of it is left.

    time_limit_s counts from the start of `run`. grace_s: between SIGTERM and SIGKILL at the time limit and at the server's stop.
    """

    folder: Folder
    pid: int
    groups: Groups
    memory: MemoryWatch
    wakeup: Wakeup
    time_limit_s: float | None
    grace_s: float
    periodic: list[Periodic] = field(default_factory=list)
    server_stop: StopOrder | None = None
    _verdict: Exit | None = None
    _kill_at: float = math.inf
    _status: int | None = None

    def run(self) -> Exit:
        """Returns when the process has exited, however it came to that, and its stragglers are gone."""
        begun = time.monotonic()
        node_kills = node_oom_kills()
        limit_at = math.inf if self.time_limit_s is None else begun + self.time_limit_s
        memory_at = begun + self.memory.next_s
        while not self._reap():
            now = time.monotonic()
            self._look_for_stop(now)
            if now >= memory_at:
                self._look_at_memory(now)
                memory_at = now + self.memory.next_s
            if now >= limit_at and self._verdict is None and self.time_limit_s is not None:
                reason = f"time limit of {seconds_in_words(self.time_limit_s)} reached"
                self._end(Exit(ExitKind.TIME_LIMIT, TIME_LIMIT_CODE, reason), now + self.grace_s)
            if now >= self._kill_at:
                self._kill_tree()
                self._kill_at = now + _LAST_WORDS_S
            for each in self.periodic:
                each.run_if_due(now)
            due = [memory_at, self._kill_at, *(p.due_at for p in self.periodic)]
            self.wakeup.wait(min(due + ([limit_at] if self._verdict is None else [])) - time.monotonic())
        over_memory = self._verdict is None and self.memory.limit > 0 and self.groups.oom_kills() > 0
        peak = self.groups.peak_bytes() if over_memory else 0
        self._leave_time_to_end()
        self._kill_tree()
        tree.kill_below(os.getpid())
        self.groups.remove()
        if over_memory:
            return Exit(ExitKind.OUT_OF_MEMORY, 137, self.memory.in_words(peak))
        return self._exit(node_oom_kills() > node_kills)

    def _exit(self, node_out_of_memory: bool) -> Exit:
        ended = self._verdict
        assert self._status is not None
        if ended is None:
            return exit_of(self._status, self.folder.streams / "stderr", node_out_of_memory=node_out_of_memory)
        if ended.kind in (ExitKind.STOPPED, ExitKind.PEER_FAILED):
            return Exit(ended.kind, code_of(self._status), ended.reason)
        return ended

    def _reap(self) -> bool:
        """Take in every child that ended (orphans of the user's process are ours, too); whether the process itself did."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._status is not None
            if pid == 0:
                return self._status is not None
            if pid == self.pid:
                self._status = status

    def _look_for_stop(self, now: float) -> None:
        order = self.folder.read_stop() or self.server_stop
        if order is None:
            return
        if self._verdict is None:
            self._end(Exit(order.kind, 143, order.reason), now + order.grace_s)
        elif self._verdict.kind is order.kind:
            self._kill_at = min(self._kill_at, now + order.grace_s)  # a second order with less patience

    def _look_at_memory(self, now: float) -> None:
        reason = self.memory.check()
        if reason is not None and (self._verdict is None or self._verdict.kind is not ExitKind.OUT_OF_MEMORY):
            self._verdict = Exit(ExitKind.OUT_OF_MEMORY, 137, reason)
            self._kill_at = now

    def _end(self, verdict: Exit, kill_at: float) -> None:
        """Ask the process to end; its own children are its to tell, unless it does not listen."""
        self._verdict, self._kill_at = verdict, kill_at
        try:
            os.kill(self.pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def _leave_time_to_end(self) -> None:
        """A wrapper such as a shell script dies of SIGTERM and leaves the real program behind: that one is asked as well, and has
        what is left of the grace."""
        if self._verdict is None or not self._has_children():
            return
        for stat in tree.descendants(os.getpid()):
            try:
                os.kill(stat.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                continue
        while self._has_children() and (left := self._kill_at - time.monotonic()) > 0:
            self._look_for_stop(time.monotonic())
            self.wakeup.wait(left)
            self._reap()

    def _kill_tree(self) -> None:
        members = {stat.pid for stat in tree.descendants(os.getpid())} if self._has_children() else set()
        tree.kill(members | set(self.groups.pids()))

    @staticmethod
    def _has_children() -> bool:
        """Whether any child is left, without reaping it. Costs nothing, unlike looking through all processes."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


