"""Restarts of the user's process within an attempt, as the restart policy of its role allows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.ids import Digest
from hopyard.domain.launch import RestorePoint
from hopyard.domain.metric_records import MAX_RECORD_BYTES, complete_bytes
from hopyard.domain.replica import ReplicaSpec, StopOrder
from hopyard.domain.restart_policy import RESTART_COUNT_VARIABLE, RESTART_STEPS_VARIABLE
from hopyard.domain.run import RunEventKind
from hopyard.domain.stream_limits import MEDIA_STREAM, METRIC_STREAMS, OUTPUT_STREAMS, STREAMS
from hopyard.errors import HopyardError, ServerUnavailable
from hopyard.private_files import open_below
from hopyard.replica.event_log import EventLog
from hopyard.replica.exit_reasons import format_seconds
from hopyard.replica.prepare import open_tree_cache
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.supervisor import Wakeup
from hopyard.sdk.safe_points import SAFE_POINTS_DIR

_RETRY_INTERVAL_S = 1.0
_SAVED_KINDS = ("checkpoint", "turn")  # events with the offsets of this replica's streams at a step
_LINE_STREAMS = ("events", MEDIA_STREAM)
_MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _StepOffsets:
    step: int
    offsets: Mapping[str, int]
    folder: Path | None = None  # of the checkpoint, where this replica saved it


@dataclass(slots=True)
class ProcessRestarts:
    """Decides about restarts, and prepares the files of the replica for the next process.

    find_stop: returns the order to stop, if there is one. server_offsets: maps offsets of the streams' files
    to those of the server's copies. report: called with the state of the wait. build_command: builds the
    command of a process, as `process_command`; None for one that is the same in all of them.
    list_checkpoints: returns the checkpoints of the script itself, the newest first.
    """

    folder: ReplicaDir
    spec: ReplicaSpec
    server: ServerConnection
    stack: ExitStack
    wakeup: Wakeup
    find_stop: Callable[[], StopOrder | None]
    server_offsets: Callable[[Mapping[str, int]], dict[str, int]]
    report: Callable[[str], None]
    restored: RestorePoint | None = None  # the checkpoint that the newest process started from
    build_command: Callable[..., tuple[list[str], dict[str, str]]] | None = None
    list_checkpoints: Callable[..., list[str]] = lambda **_: []
    _restarted_at: list[float] = field(default_factory=list)
    _ended_at: float = 0.0  # the Unix time at which the newest process ended

    @property
    def count(self) -> int:
        return len(self._restarted_at)

    def last_exit(self, exit: Exit) -> Exit | None:
        """Returns the exit of the replica after its process ended with `exit`; None if another process has to
        start now. Waits for the backoff, and for the checkpoint to start from."""
        policy, self._ended_at = self.spec.launch.restart, time.time()
        if self.spec.launch.study is not None or not policy.allows(exit):
            return exit
        if (order := self.find_stop()) is not None:
            return exit if exit.is_success else Exit(order.kind, 143, order.reason)
        now = time.monotonic()
        delay_s = policy.delay_s(self._restarted_at, now)
        if delay_s is None:
            return replace(exit, reason=f"{exit.reason}; {policy.exceeded_text()}")
        self.report(f"restarts in {format_seconds(round(delay_s, 1))}: {exit.reason}")
        order = self._wait(now + delay_s) or self._restore_newest()
        if order is not None:
            return Exit(order.kind, 143, order.reason)
        self._restarted_at.append(time.monotonic())
        return None

    def prepare(
        self, exit: Exit, argv: Sequence[str], env: Mapping[str, str]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """Prepares the files for the next process, after one with this exit. Returns its command and its
        environment. It gets resume arguments as the first process of a new attempt does."""
        self._clear_traces()
        saved = self._saved_steps()
        step = None if self.restored is None else self.restored.step
        begins = next((each.offsets for each in reversed(saved) if each.step == step), None)
        self._record(exit, step, begins)
        if self.build_command is not None:
            killed_at = self._ended_at if exit.kind is ExitKind.SIGNAL else None
            newest = self.list_checkpoints(killed_at=killed_at)
            argv, env = self.build_command(restored=self.restored is not None, newest=newest)
        return argv, self._environment(env)

    def output_begins(self) -> dict[str, int]:
        """Returns where the output of the next process begins in its streams."""
        sizes = _stream_sizes(self.folder)
        return {name: sizes.get(name, 0) for name in OUTPUT_STREAMS}

    def _environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        changed = {**env, RESTART_COUNT_VARIABLE: str(self.count)}
        if self.restored is not None:
            changed["HOPYARD_RESTORE_DIR"] = str(self.folder.restore)
            changed["HOPYARD_RESTORE_STEP"] = str(self.restored.step)
            begun_at = self.spec.launch.restore.step if self.spec.launch.restore is not None else 0
            changed[RESTART_STEPS_VARIABLE] = str(self.restored.step - begun_at)
        if self.restored != self.spec.launch.restore:  # the run itself saved it
            changed.pop("HOPYARD_RESTORE_FOREIGN", None)
        return changed

    def _wait(self, until: float) -> StopOrder | None:
        """Waits. Returns the order to stop that arrived meanwhile."""
        while True:
            if (order := self.find_stop()) is not None:
                return order
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                return None
            self.wakeup.wait(remaining_s)

    def _clear_traces(self) -> None:
        """Removes what the ended process left for its replica and its peers, and partial records."""
        self.folder.remove_exit_text()
        rank = self.spec.launch.rank
        gang = Path(self.spec.node.gang_folder or self.folder.root)
        with suppress(OSError):
            points = open_below(gang, SAFE_POINTS_DIR, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in os.listdir(points):
                    if name.startswith((f"{rank}-", f"log-{rank}-")):
                        os.unlink(name, dir_fd=points)
            finally:
                os.close(points)
        for name in (*METRIC_STREAMS, *_LINE_STREAMS):
            self._truncate_partial_record(name)

    def _truncate_partial_record(self, name: str) -> None:
        """A record that the process began is not shipped, and would damage the next one."""
        try:
            descriptor = open_below(self.folder.root, f"streams/{name}", os.O_RDWR)
        except OSError:
            return
        try:
            size = os.fstat(descriptor).st_size
            begin = 0 if name in METRIC_STREAMS else max(0, size - _MAX_LINE_BYTES)
            data = _read(descriptor, begin)
            complete = complete_bytes(data) if name in METRIC_STREAMS else data.rfind(b"\n") + 1
            # released disk blocks read as zeros, which are no record either
            if 0 < len(data) - complete < MAX_RECORD_BYTES:
                os.ftruncate(descriptor, begin + complete)
        finally:
            os.close(descriptor)

    def _saved_steps(self) -> list[_StepOffsets]:
        """Returns the steps that this replica recorded, in order; a restart hides those after its step."""
        saved: list[_StepOffsets] = []
        for event in EventLog(self.folder.streams / "events").poll():
            step = event.get("step")
            if event.get("kind") == RunEventKind.RESTARTED:
                if isinstance(step, int):
                    saved = [each for each in saved if each.step <= step]
            elif event.get("kind") in _SAVED_KINDS and isinstance(step, int):
                saved.append(_saved_step(self.folder, step, event))
        return saved

    @staticmethod
    def _newest_own(saved: list[_StepOffsets]) -> _StepOffsets | None:
        complete = [each for each in saved if each.folder is not None and each.folder.is_dir()]
        return max(complete, key=lambda each: each.step, default=None)

    def _link_restore(self, target: Path) -> None:
        self.folder.restore.unlink(missing_ok=True)
        self.folder.restore.symlink_to(target)

    def _restore_newest(self) -> StopOrder | None:
        """Restores the newest checkpoint of the run: of this replica, else of another one, from the server.
        Without the server it waits, as for the first process. Returns the order to stop that arrives."""
        newest = self._newest_own(self._saved_steps())
        if newest is None:
            return self._fetch_newest()
        self._link_restore(newest.folder or Path())
        self.restored = RestorePoint(newest.step, Digest(""))
        return None

    def _fetch_newest(self) -> StopOrder | None:
        launch = self.spec.launch
        while (order := self.find_stop()) is None:
            try:
                rows = self.server.client.iterate_run_checkpoints(launch.run)
                # those with a path are files of the script, which Hopyard does not restore
                found = [each for each in rows if not each["damaged"] and not each.get("path")]
                newest = max(found, key=lambda each: each["step"], default=None)
                if newest is not None and (self.restored is None or newest["step"] > self.restored.step):
                    cache = open_tree_cache(self.spec, self.folder)
                    fetch, manifest = self.server.client.fetch, Digest(newest["manifest"])
                    self._link_restore(self.stack.enter_context(cache.open_tree(manifest, fetch)))
                    self.restored = RestorePoint(newest["step"], manifest)
                return None
            except ServerUnavailable as error:
                log(f"restart waits: {error}")
                self.report("waiting for the server")
                if not self.server.rediscover():
                    self._wait(time.monotonic() + _RETRY_INTERVAL_S)
            except HopyardError as error:
                self.folder.record_note(f"the newest checkpoint is not restored: {error.message}")
                return None
        return order

    def _record(self, exit: Exit, step: int | None, begins: Mapping[str, int] | None) -> None:
        """Records the restart with the parts of this replica's streams that the next process repeats."""
        sizes = _stream_sizes(self.folder)
        ends = self.server_offsets(sizes)
        cuts = {} if begins is None else self.server_offsets({k: v for k, v in begins.items() if k in sizes})
        launch, policy = self.spec.launch, self.spec.launch.restart
        source = "" if step is None else f" from the checkpoint of step {step}"
        text = f"{launch.host_name} restarted{source} ({self.count} of {policy.limit}): {exit.reason}"
        with suppress(OSError):  # a full disk: readers show the repeated part twice
            self.folder.append_json(
                "events",
                kind=RunEventKind.RESTARTED,
                text=text,
                step=step,
                ends=ends,
                begins=cuts,
            )
            self.folder.append("stderr", f"hopyard: {text}\n".encode())


def _saved_step(folder: ReplicaDir, step: int, event: Mapping[str, Any]) -> _StepOffsets:
    offsets, name = event.get("offsets"), event.get("folder")
    return _StepOffsets(
        step,
        {k: v for k, v in offsets.items() if isinstance(v, int)} if isinstance(offsets, dict) else {},
        folder.checkpoints / Path(name).name if isinstance(name, str) else None,
    )


def _stream_sizes(folder: ReplicaDir) -> dict[str, int]:
    sizes = {}
    for name in STREAMS:
        with suppress(OSError):
            sizes[name] = os.stat(folder.streams / name, follow_symlinks=False).st_size
    return sizes


def _read(descriptor: int, begin: int) -> bytes:
    parts, offset = [], begin
    while part := os.pread(descriptor, 4 * 1024 * 1024, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
