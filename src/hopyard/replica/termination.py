"""Ends a process: requests a save at a safe point or by SIGUSR1, sends SIGTERM, kills it; then determines its
exit."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import DEFAULT_STOP_SIGNAL, StopOrder
from hopyard.replica import process_tree
from hopyard.replica.checkpoint_signal import request_save
from hopyard.replica.exit_reasons import (
    TIME_LIMIT_CODE,
    exit_code_from_status,
    exit_from_status,
    format_seconds,
    free_disk_bytes,
    is_disk_full,
)
from hopyard.replica.replica_dir import ReplicaDir, SafePointExit
from hopyard.sdk.safe_points import DISK_FULL_REASON, SAFE_POINT_EXIT_CODE, SAFE_POINTS_DIR

_TERMINAL_SIGNALS = ("INT", "HUP", "QUIT")
_TERM_SHARE_OF_GRACE = (
    0.25  # of the grace period: for the SIGTERM handler of a script that reaches no safe point
)


@dataclass(slots=True)
class Termination:
    """The termination of one process.

    gang_folder: where processes with safe points register. grace_s: the maximum part of an order's grace
    period that is reserved for SIGTERM.

    exit_cause: why it ends, None while it need not. term_at, kill_at: when it gets SIGTERM and SIGKILL.
    awaits_safe_point: whether the script is expected to stop at a safe point, where it only writes a file.
    stop_order_error: why the time limit's order could not be written for the script. output_begins: where the
    output of the process begins in its streams.
    """

    folder: ReplicaDir
    pid: int
    gang_folder: Path
    grace_s: float
    output_begins: Mapping[str, int] = field(default_factory=dict)
    exit_cause: Exit | None = None
    term_at: float = math.inf
    kill_at: float = math.inf
    awaits_safe_point: bool = False
    stop_order_error: str = ""
    _order: StopOrder | None = None
    _sigterm_sent: bool = False
    _save_requested: bool = False  # by SIGUSR1, of a script without safe points
    _signal: str = DEFAULT_STOP_SIGNAL
    _free_bytes: float = math.inf
    _time_limit_order: StopOrder | None = None  # the order of the time limit, if it was the first order

    def apply_order(self, order: StopOrder, now: float) -> None:
        """Applies a stop order; harmless to repeat."""
        if order.signal not in ("", self._signal):
            self._signal, self._sigterm_sent = order.signal, False
        if self.exit_cause is None:
            self.exit_cause, self._order, self.kill_at = (
                Exit(order.kind, 143, order.reason),
                order,
                now + order.grace_s,
            )
            self.awaits_safe_point = order.at_safe_point and self._has_safe_points()
            self._time_limit_order = order if order.kind is ExitKind.TIME_LIMIT else None
            if order.at_safe_point and not self.awaits_safe_point:
                self._save_requested = request_save(os.getpid())
            self.term_at = (
                self._latest_sigterm_at(order)
                if self.awaits_safe_point or self._save_requested or self._time_limit_order is not None
                else now
            )
        elif self._order is not None and order != self._order:  # a second order with a shorter grace period
            self._order, self.exit_cause = order, Exit(order.kind, 143, order.reason)
            self.kill_at = min(self.kill_at, now + order.grace_s)
            self.awaits_safe_point = self.awaits_safe_point and order.at_safe_point
            awaits_save = self.awaits_safe_point or (self._save_requested and order.at_safe_point)
            self.term_at = min(self.term_at, self._latest_sigterm_at(order) if awaits_save else now)
        elif self.awaits_safe_point and self.folder.read_safe_point_exit() is not None:
            # the script stopped, but its wrapper still runs
            self.awaits_safe_point, self.term_at = False, min(self.term_at, now + self.grace_s)

    def apply_limit(self, exit_cause: Exit, now: float, *, kill_at: float) -> None:
        """Ends the process because of a limit, not an order."""
        self.exit_cause, self._order, self.awaits_safe_point = exit_cause, None, False
        self.term_at, self.kill_at = now, kill_at

    def send_sigterm_if_due(self, now: float) -> None:
        """Sends SIGTERM, or the signal of the order, once. The process must notify its own children, except
        of the signals that a terminal sends to all processes in the foreground."""
        if now < self.term_at:
            return
        self.term_at = math.inf
        if self._is_zombie():
            return  # it has already ended: a signal would only change the reported reason
        if not self._sigterm_sent:
            self._sigterm_sent = True
            send = os.killpg if self._signal in _TERMINAL_SIGNALS else os.kill
            try:
                send(self.pid, signal.Signals[f"SIG{self._signal}"])
            except ProcessLookupError:
                return

    def signal_descendant(self, pid: int) -> None:
        """Sends the signal to a process that has outlived its parent, if it has not got it with the group: a
        second one would end the program while it saves."""
        try:
            if self._signal not in _TERMINAL_SIGNALS or os.getpgid(pid) != self.pid:
                os.kill(pid, signal.Signals[f"SIG{self._signal}"])
        except (ProcessLookupError, PermissionError):
            return

    def check_disk(self) -> None:
        """Called when the process has ended: reads how full its disk is, which may be the reason."""
        self._free_bytes = free_disk_bytes(self.folder.streams)

    def exit(self, status: int, *, node_out_of_memory: bool) -> Exit:
        """Returns the exit of the process for its wait status."""
        process_exit = exit_from_status(
            status,
            self.folder.streams / "stdout",
            self.folder.streams / "stderr",
            exit_text=self.folder.read_exit_text(),
            begins=self.output_begins,
            node_out_of_memory=node_out_of_memory,
            free_bytes=self._free_bytes,
        )
        safe_point_exit = self.folder.read_safe_point_exit()
        if self.exit_cause is None:
            if safe_point_exit is None or process_exit.code != SAFE_POINT_EXIT_CODE:
                return process_exit
            # The script reads the order itself, and obeyed before this process did.
            return Exit(ExitKind.PREEMPTED, process_exit.code, _preemption_text(safe_point_exit))
        if self._order is None:
            return self.exit_cause
        # the script could not write its record; only the exit code is known
        if safe_point_exit is None and self.awaits_safe_point and process_exit.code == SAFE_POINT_EXIT_CODE:
            safe_point_exit = SafePointExit(
                0,
                None,
                DISK_FULL_REASON
                if is_disk_full(self._free_bytes)
                else "its exit reason could not be written",
            )
        if self._time_limit_order is not None and (
            safe_point_exit is not None or self.exit_cause.kind is ExitKind.TIME_LIMIT
        ):
            return self._time_limit_exit(self._time_limit_order, safe_point_exit, process_exit)
        if safe_point_exit is not None:
            return Exit(ExitKind.PREEMPTED, exit_code_from_status(status), _preemption_text(safe_point_exit))
        reason = self.exit_cause.reason
        if self.exit_cause.kind is ExitKind.PREEMPTED:
            # Its failure may be caused by a peer that stopped. If it is not, it will occur again.
            is_signalled = self._sigterm_sent or self._save_requested
            if process_exit.is_success and not is_signalled:
                return process_exit
            if not is_signalled:
                reason += f"; it ended by itself: {process_exit.reason}"
            elif self.awaits_safe_point:
                reason += f": it reached no safe point within {format_seconds(self._order.grace_s)}"
        return Exit(self.exit_cause.kind, exit_code_from_status(status), reason)

    def _time_limit_exit(
        self, order: StopOrder, safe_point_exit: SafePointExit | None, process_exit: Exit
    ) -> Exit:
        if safe_point_exit is not None:
            return Exit(
                ExitKind.TIME_LIMIT, TIME_LIMIT_CODE, order.reason + _checkpoint_text(safe_point_exit)
            )
        if not self._sigterm_sent:
            return process_exit
        failure_text = (
            f": it reached no safe point within {format_seconds(round(order.grace_s, 1))}"
            if self.awaits_safe_point
            else ""
        )
        if self.awaits_safe_point and self.stop_order_error:
            failure_text = f": the script could not be notified to save: {self.stop_order_error}"
        return Exit(ExitKind.TIME_LIMIT, TIME_LIMIT_CODE, order.reason + failure_text)

    def _latest_sigterm_at(self, order: StopOrder) -> float:
        return self.kill_at - min(self.grace_s, _TERM_SHARE_OF_GRACE * order.grace_s)

    def _is_zombie(self) -> bool:
        """Returns whether the process only waits to be reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _has_safe_points(self) -> bool:
        try:
            names = os.listdir(self.gang_folder / SAFE_POINTS_DIR)
        except OSError:
            return False
        pids = {name.partition("-")[2] for name in names}
        return any(
            str(process_tree.namespace_pid(stat.pid)) in pids
            for stat in process_tree.descendants(os.getpid())
        )


def _checkpoint_text(safe_point_exit: SafePointExit) -> str:
    """Returns the text about the checkpoint that follows the reason of the exit."""
    if safe_point_exit.rank:
        return ""
    return (
        f"; {_unsaved_text(safe_point_exit)}"
        if safe_point_exit.step is None
        else f", saved at step {safe_point_exit.step}"
    )


def _preemption_text(safe_point_exit: SafePointExit) -> str:
    if safe_point_exit.rank:
        return "preempted"
    return (
        f"preempted; {_unsaved_text(safe_point_exit)}"
        if safe_point_exit.step is None
        else f"preempted at step {safe_point_exit.step}, checkpoint saved"
    )


def _unsaved_text(safe_point_exit: SafePointExit) -> str:
    return (
        f"no checkpoint could be saved: {safe_point_exit.why}"
        if safe_point_exit.why
        else "nothing could be saved"
    )
