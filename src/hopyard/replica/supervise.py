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
from hopyard.replica import tree
from hopyard.replica.diary import say
from hopyard.replica.ending import Ending
from hopyard.replica.folder import Folder
from hopyard.replica.limits import Groups, MemoryWatch
from hopyard.replica.reasons import node_oom_kills, seconds_in_words

# what is due so soon is done with what is due now: to wake up takes longer than most of it
_TOGETHER_S = 0.05
_LEFT_EVERY_S = 0.25  # how often a script that is left to come to a safe point is asked whether it has
# how long before a time limit a script is asked to save and leave; at most this part of the limit
_NOTICE_S, _NOTICE_PART = 60.0, 0.25
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
    """Something done now and then beside the user's process.
    `act` says in how many seconds it is due again."""

    due_at: float
    act: Callable[[], float]

    def run_if_due(self, now: float) -> None:
        if now < self.due_at - _TOGETHER_S:
            return
        try:
            self.due_at = now + self.act()
        except (OSError, ValueError) as failed:  # a full disk, a broken file: the user's process matters more
            say(f"skipped: {failed}")
            self.due_at = now + 5.0


@dataclass(slots=True)
class Supervisor:
    """Watches one process until it has ended and nothing of it is left.

    time_limit_s counts from the start of `run`, and is kept: the process is asked to save and leave a while
    before, gets SIGTERM at most `grace_s` before, and SIGKILL at the limit. warn: is told of that while there
    is time. gang_folder: where processes with safe points show themselves.
    """

    folder: Folder
    pid: int
    groups: Groups
    memory: MemoryWatch
    wakeup: Wakeup
    time_limit_s: float | None
    grace_s: float
    gang_folder: Path
    warn: Callable[[str], None]
    periodic: list[Periodic] = field(default_factory=list)
    server_stop: StopOrder | None = None
    _ending: Ending = field(init=False)
    _status: int | None = None

    def __post_init__(self) -> None:
        self._ending = Ending(self.folder, self.pid, self.gang_folder, self.grace_s)

    def run(self) -> Exit:
        """Returns when the process has exited, however it came to that, and its stragglers are gone."""
        begun, ending = time.monotonic(), self._ending
        node_kills = node_oom_kills()
        limit_s = math.inf if self.time_limit_s is None else self.time_limit_s
        limit_at, notice_at = begun + limit_s, begun + limit_s - min(_NOTICE_S, limit_s * _NOTICE_PART)
        memory_at = begun + self.memory.next_s
        while not self._reap():
            now = time.monotonic()
            self._look_for_stop(now)
            if now >= memory_at:
                self._look_at_memory(now)
                memory_at = now + self.memory.next_s
            for each in self.periodic:
                each.run_if_due(now)
            if now >= notice_at and ending.verdict is None:
                self._tell_of_limit(limit_s, limit_at, now)
            ending.tell_if_due(now)
            if now >= ending.kill_at:
                self._kill_tree()
                ending.kill_at = now + _LAST_WORDS_S
            due = [memory_at, ending.term_at, ending.kill_at, *(p.due_at for p in self.periodic)]
            due += [notice_at] if ending.verdict is None else []
            due += [now + _LEFT_EVERY_S] if ending.waits else []
            self.wakeup.wait(min(due) - time.monotonic())
        over_memory = ending.verdict is None and self.memory.limit > 0 and self.groups.oom_kills() > 0
        peak = self.groups.peak_bytes() if over_memory else 0
        self._leave_time_to_end()
        self._kill_tree()
        tree.kill_below(os.getpid())
        self.groups.remove()
        if over_memory:
            return Exit(ExitKind.OUT_OF_MEMORY, 137, self.memory.in_words(peak))
        assert self._status is not None
        return ending.exit(self._status, node_out_of_memory=node_oom_kills() > node_kills)

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
                    self._ending.look_at_disk()
                pid, status = os.waitpid(ended.si_pid, 0)
            except ChildProcessError:
                return self._status is not None
            if pid == self.pid:
                self._status = status

    def _look_for_stop(self, now: float) -> None:
        order = self.folder.read_stop() or self.server_stop
        # the attempt cannot be told of any more, and another may begin
        if order is None and not self.folder.is_there():
            order = StopOrder(0.0, ExitKind.LOST, "lost: the folder of its replica was removed")
        if order is not None:
            self._ending.obey(order, now)

    def _tell_of_limit(self, limit_s: float, limit_at: float, now: float) -> None:
        """Ask for a checkpoint as a preemption does: by an order in the folder, where a script with safe
        points looks for it."""
        order = StopOrder.limit(
            max(0.0, limit_at - now), f"time limit of {seconds_in_words(limit_s)} reached"
        )
        try:
            self.folder.request_stop(order)
        except OSError as failed:
            # a full disk, and no space set aside: SIGTERM is all that reaches the script
            self._ending.unwritten = failed.strerror or str(failed)
        self._ending.obey(order, now)
        left = f"{order.grace_s:.2g} s" if order.grace_s < 10 else f"{order.grace_s:.0f} s"
        end = (
            "it saves a checkpoint at its next safe point and leaves"
            if self._ending.waits
            else "it gets SIGTERM shortly before"
        )
        self.warn(f"the time limit of {seconds_in_words(limit_s)} is reached in {left}: {end}")

    def _look_at_memory(self, now: float) -> None:
        reason = self.memory.check()
        if reason is not None:
            self.end_for_memory(reason, now)

    def end_for_memory(self, reason: str, now: float) -> None:
        """It used more than its part, of whichever memory: it is killed at once, for its neighbours' sake."""
        verdict = self._ending.verdict
        if verdict is None or verdict.kind is not ExitKind.OUT_OF_MEMORY:
            self._ending.end(Exit(ExitKind.OUT_OF_MEMORY, 137, reason), now, kill_at=now)

    def _leave_time_to_end(self) -> None:
        """A wrapper such as a shell script dies of SIGTERM and leaves the real program behind: that one is
        asked as well, and has what is left of the grace."""
        if self._ending.verdict is None or not self._has_children():
            return
        for stat in tree.descendants(os.getpid()):
            try:
                os.kill(stat.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                continue
        while self._has_children() and (left := self._ending.kill_at - time.monotonic()) > 0:
            self._look_for_stop(time.monotonic())
            self.wakeup.wait(left)
            self._reap()

    def _kill_tree(self) -> None:
        members = {stat.pid for stat in tree.descendants(os.getpid())} if self._has_children() else set()
        tree.kill(members | set(self.groups.pids()))

    @staticmethod
    def _has_children() -> bool:
        """Whether any child is left, without reaping it.
        Costs nothing, unlike looking through all processes."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True
