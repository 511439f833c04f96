"""How a process is made to end: left to a safe point, asked, killed; and what is said of it afterwards."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder
from hopyard.replica import tree
from hopyard.replica.folder import Folder, Left
from hopyard.replica.reasons import TIME_LIMIT_CODE, code_of, exit_of, is_full, seconds_in_words
from hopyard.sdk.safepoint import DISK_FULL, EXIT_CODE, FOLDER

_LAST_PART = 0.25  # of the grace: for a script that comes to no safe point to do what it does at SIGTERM


@dataclass(slots=True)
class Ending:
    """Of one process. gang_folder: where processes with safe points show themselves.
    grace_s: at most how much of an order's grace is kept for SIGTERM.

    verdict: what it ends for, None while it need not. term_at, kill_at: when it is asked by SIGTERM, and
    killed. waits: for a safe point, of which the script leaves word in a file only. unwritten: why the order
    of the time limit could not be written for the script to see.
    """

    folder: Folder
    pid: int
    gang_folder: Path
    grace_s: float
    verdict: Exit | None = None
    term_at: float = math.inf
    kill_at: float = math.inf
    waits: bool = False
    unwritten: str = ""
    _order: StopOrder | None = None
    _told: bool = False  # by SIGTERM
    _disk_full: bool = False
    _limit: StopOrder | None = None  # that of the time limit, where that came first

    def obey(self, order: StopOrder, now: float) -> None:
        """Do what an order says; harmless to repeat."""
        if self.verdict is None:
            self.verdict, self._order, self.kill_at = (
                Exit(order.kind, 143, order.reason),
                order,
                now + order.grace_s,
            )
            self.waits = order.at_safe_point and self._has_safe_points()
            self._limit = order if order.kind is ExitKind.TIME_LIMIT else None
            self.term_at = self._latest_term(order) if self.waits or self._limit is not None else now
        elif self._order is not None and order != self._order:  # a second one with less patience
            self._order, self.verdict = order, Exit(order.kind, 143, order.reason)
            self.kill_at = min(self.kill_at, now + order.grace_s)
            self.waits = self.waits and order.at_safe_point
            self.term_at = min(self.term_at, self._latest_term(order) if self.waits else now)
        elif self.waits and self.folder.read_left() is not None:
            # what goes on is what started the script, or does not end
            self.waits, self.term_at = False, min(self.term_at, now + self.grace_s)

    def end(self, verdict: Exit, now: float, *, kill_at: float) -> None:
        """Not by an order but by a limit."""
        self.verdict, self._order, self.waits = verdict, None, False
        self.term_at, self.kill_at = now, kill_at

    def tell_if_due(self, now: float) -> None:
        """SIGTERM, once; its own children are its to tell, unless it does not listen."""
        if now < self.term_at:
            return
        self.term_at = math.inf
        if self._has_ended():
            return  # by itself, before it was looked at: a signal would change nothing but what is said of it
        if not self._told:
            self._told = True
            try:
                os.kill(self.pid, signal.SIGTERM)
            except ProcessLookupError:
                return

    def look_at_disk(self) -> None:
        """The process has ended: see whether its disk is full now, which may be the reason."""
        self._disk_full = is_full(self.folder.streams)

    def exit(self, status: int, *, node_out_of_memory: bool) -> Exit:
        """How it ended, from what waitpid gave."""
        own = exit_of(
            status,
            self.folder.streams / "stderr",
            node_out_of_memory=node_out_of_memory,
            disk_full=self._disk_full,
        )
        if self.verdict is None:
            return own
        if self._order is None:
            return self.verdict
        left = self.folder.read_left()
        # it could not write more than its exit code
        if left is None and self.waits and own.code == EXIT_CODE:
            left = Left(0, None, DISK_FULL if self._disk_full else "its last words could not be written")
        if self._limit is not None and (left is not None or self.verdict.kind is ExitKind.TIME_LIMIT):
            return self._at_limit(self._limit, left, own)
        if left is not None:
            return Exit(ExitKind.PREEMPTED, code_of(status), _in_words(left))
        reason = self.verdict.reason
        if self.verdict.kind is ExitKind.PREEMPTED:
            # A bad end of its own may come of a peer that left; where it does not, it comes again.
            if own.ok and not self._told:
                return own
            if not self._told:
                reason += f"; it ended by itself: {own.reason}"
            elif self.waits:
                reason += f": it came to no safe point within {seconds_in_words(self._order.grace_s)}"
        return Exit(self.verdict.kind, code_of(status), reason)

    def _at_limit(self, order: StopOrder, left: Left | None, own: Exit) -> Exit:
        if left is not None:
            return Exit(ExitKind.TIME_LIMIT, TIME_LIMIT_CODE, order.reason + _saved(left))
        if not self._told:
            return own
        late = (
            f": it came to no safe point within {seconds_in_words(round(order.grace_s, 1))}"
            if self.waits
            else ""
        )
        if self.waits and self.unwritten:
            late = f": the script could not be asked to save: {self.unwritten}"
        return Exit(ExitKind.TIME_LIMIT, TIME_LIMIT_CODE, order.reason + late)

    def _latest_term(self, order: StopOrder) -> float:
        return self.kill_at - min(self.grace_s, _LAST_PART * order.grace_s)

    def _has_ended(self) -> bool:
        """Whether the process is only waiting to be reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _has_safe_points(self) -> bool:
        try:
            names = os.listdir(self.gang_folder / FOLDER)
        except OSError:
            return False
        pids = {name.partition("-")[2] for name in names}
        return any(str(stat.pid) in pids for stat in tree.descendants(os.getpid()))


def _saved(left: Left) -> str:
    """What to add to the reason for which a script left."""
    if left.rank:
        return ""
    return f"; {_unsaved(left)}" if left.step is None else f", saved at step {left.step}"


def _in_words(left: Left) -> str:
    if left.rank:
        return "preempted"
    return (
        f"preempted; {_unsaved(left)}"
        if left.step is None
        else f"preempted at step {left.step}, checkpoint saved"
    )


def _unsaved(left: Left) -> str:
    return f"no checkpoint could be saved: {left.why}" if left.why else "nothing could be saved"
