"""One process's side of a run: where it records, what it has bound, how far it is.
The functions of `import hopyard` are in `api.py`; this is what they share. Standard library only."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from hopyard.config.home import Home
from hopyard.errors import SpecError, is_disk_full
from hopyard.sdk import bound_objects as binding
from hopyard.sdk import checkpoints
from hopyard.sdk import params as parameters
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.checkpoints import CheckpointContents, LoopPosition
from hopyard.sdk.gloo_threads import wait_for_gloo_threads
from hopyard.sdk.gpu_share import limit_torch_memory
from hopyard.sdk.metrics import MetricStream, Number, to_float, to_step
from hopyard.sdk.object_state import capture_rng, restore_rng
from hopyard.sdk.offline import FOLDER_VARIABLE, MAX_CHECKPOINTS, OfflineRun
from hopyard.sdk.resumable_loop import Loop, LoopStack
from hopyard.sdk.run_context import RunContext
from hopyard.sdk.safe_points import DISK_FULL_REASON, PreemptedExit, SafePoints
from hopyard.sdk.streams import EventStream, stream_sizes
from hopyard.sdk.warn_once import warn_once

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

_PROGRESS_INTERVAL_S = 0.2
_MAX_SAVE_OVERHEAD_FACTOR = 20  # after so many, a loop that mostly saves is told of `every`


class Session:
    """Opened by the first call that records something. `folder` is the replica's, or one like it."""

    def __init__(
        self, folder: str, environ: Mapping[str, str], *, offline: bool, recording: OfflineRun | None = None
    ) -> None:
        """recording: set in the process that an offline recording began in."""
        self.folder, self.offline, self._recording = folder, offline, recording
        self.metrics = MetricStream(os.path.join(folder, "streams", "metrics"), self.check_overrides)
        self.events = EventStream(os.path.join(folder, "streams", "events"))
        self.bound = BoundObjects()
        self.declared: dict[str, ParamValue] = {}
        self._environ = environ
        self._overrides = parameters.read_overrides(environ.get("HOPYARD_PARAMS"))
        self._overrides_checked = False
        self._loop_stack = LoopStack()
        self._restore_dir = environ.get("HOPYARD_RESTORE_DIR") or None
        self._restored: CheckpointContents | None = None
        self._last_step: int | None = None  # of the newest checkpoint, here or restored
        self._progress_at = 0.0
        self._save_count, self._save_total_s, self._loop_started_at = 0, 0.0, 0.0
        self._safe_points: SafePoints | None = None
        self._has_unsaved_iterations = False  # whether turns were made since the newest checkpoint
        self._unsaved_reason = ""  # why the last try to save them failed

    # -- what a script declares ------------------------------------------------------------------------------

    def declare_params(self, defaults: Mapping[str, object]) -> dict[str, ParamValue]:
        """Parameters with overrides applied; recorded together with those declared before."""
        limit_torch_memory()
        values = parameters.resolve_params(defaults, self._overrides)
        self.declared.update(values)
        self.events.append("params", values=self.declared)
        return values

    def check_overrides(self) -> None:
        """Tell of overrides that the script never declared; called once the script has begun its work."""
        if not self._overrides_checked:
            self._overrides_checked = True
            if self.rank() == 0:
                for sentence in parameters.unknown_overrides(self._overrides, self.declared):
                    warn_once(sentence, kind=sentence)

    def record_summary(self, values: Mapping[str, Number]) -> None:
        self.events.append("summary", values={name: to_float(name, value) for name, value in values.items()})

    def record_dataset(self, name: str, version: int) -> None:
        if self._recording is not None:
            self._recording.record_dataset(name, version)

    def rank(self) -> int:
        """This process's rank: as torch.distributed says once it is set up, else the launcher's variable."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return _parse_int(self._environ.get("RANK"), 0)

    def this_run(self) -> RunContext:
        environ, name = self._environ, os.path.basename(self.folder)
        step = environ.get("HOPYARD_RESTORE_STEP")
        return RunContext(
            id=environ.get("HOPYARD_RUN_ID") or name,
            name=environ.get("HOPYARD_RUN") or name,
            folder=Path(self.folder),
            offline=self.offline,
            attempt=environ.get("HOPYARD_ATTEMPT", ""),
            url="" if self.offline else environ.get("HOPYARD_URL", ""),
            rank=self.rank(),
            local_rank=_parse_int(environ.get("LOCAL_RANK"), 0),
            world_size=_parse_int(environ.get("WORLD_SIZE"), 1),
            role=environ.get("ROLE_NAME") or "worker",
            restored_step=_parse_int(step, 0) if step and self._restore_dir else None,
            params=dict(self.declared),
            tags=_tags(environ.get("HOPYARD_TAGS")),
        )

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(self, step: SupportsIndex | None, metrics: Mapping[str, Number]) -> Path | None:
        """Save the bound objects; where they are, None when it is not this process's to save or the disk
        refuses."""
        number = self._next_step() if step is None else to_step(step)
        if number < 0:
            raise SpecError(
                f"hop.save: step {number}", hints=("a checkpoint's step is a whole number from 0",)
            )
        given = {name: to_float(name, value) for name, value in metrics.items()}
        if self.rank() != 0:
            self._record_iteration(number)
            return None
        latest = {
            name: value for name, value in {**self.metrics.latest, **given}.items() if math.isfinite(value)
        }
        offsets, peers = self._offsets(), self._offsets_of_peers()
        root = os.path.join(self.folder, "checkpoints")
        began = time.monotonic()
        try:
            folder = checkpoints.write_checkpoint(
                root,
                number,
                binding.bound_objects(self.bound),
                self._loop_stack.positions(),
                latest,
                run=self.this_run().id,
                metric_counts=self.metrics.metric_counts,
            )
        except OSError as broken:
            warn_once(
                f"no checkpoint of step {number}: {broken.strerror or broken}; the script goes on",
                kind=f"save-{broken.errno}",
            )
            self._unsaved_reason = (
                DISK_FULL_REASON if is_disk_full(broken) else broken.strerror or str(broken)
            )
            return None
        self._save_count, self._save_total_s = (
            self._save_count + 1,
            self._save_total_s + time.monotonic() - began,
        )
        self._last_step, self._has_unsaved_iterations = number, False
        self.events.append(
            "checkpoint",
            step=number,
            folder=os.path.relpath(folder, self.folder),
            offsets=offsets,
            metrics=latest,
            **({"peers": peers} if peers else {}),
        )
        if self.offline:
            checkpoints.prune_checkpoints(root, MAX_CHECKPOINTS)
        return Path(folder)

    def _record_iteration(self, step: int) -> None:
        """Rank 0 saves here; this rank notes how far its streams are, so that they roll back with those of
        rank 0."""
        self._last_step, self._has_unsaved_iterations = step, False
        if not self.offline:
            self.events.append("turn", step=step, offsets=self._offsets())

    def _offsets(self) -> dict[str, int]:
        """How long this process's streams are, with all that it has said."""
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        return stream_sizes(os.path.join(self.folder, "streams"))

    def _offsets_of_peers(self) -> dict[str, dict[str, int]]:
        """The same of the gang's other ranks on this node, as they are now: some may not note it
        themselves."""
        gang = self._environ.get("HOPYARD_GANG_DIR")
        if not gang or self._world() < 2:
            return {}
        try:
            ranks = [
                name
                for name in os.listdir(gang)
                if name.isdecimal() and name != os.path.basename(self.folder)
            ]
        except OSError:
            return {}
        found = {rank: stream_sizes(os.path.join(gang, rank, "streams")) for rank in sorted(ranks)}
        return {rank: lengths for rank, lengths in found.items() if lengths}

    def _next_step(self) -> int:
        """Turns of the outermost loop that are done; larger than any step before, so that the newest is the
        largest."""
        done = self._loop_stack.active[0].iterations if self._loop_stack.active else 0
        return done if self._last_step is None else max(done, self._last_step + 1)

    def load(self) -> int | None:
        """Restore the bound objects from the checkpoint that this attempt starts from; its step, None without
        one."""
        if self._restore_dir is None:
            return None
        contents = checkpoints.read_checkpoint(
            self._restore_dir, is_untrusted=self._environ.get("HOPYARD_RESTORE_FOREIGN") == "1"
        )
        binding.restore(self.bound, contents)
        self._loop_stack.set_resume_positions(contents.positions)
        self._restored, self._last_step = contents, contents.step
        if contents.run_id:
            self.metrics.continue_counts(
                contents.metric_counts, is_other_run=contents.run_id != self.this_run().id
            )
        # the generators that were saved are rank 0's; all alike would be worse than new ones
        if self.rank() == 0:
            restore_rng(contents.rng_states())
            warn_once(f"resumed from the checkpoint of step {contents.step}", kind="resumed")
        return contents.step

    # -- what loops tell (see loop.Keeper) -------------------------------------------------------------------

    def on_enter(self, loop: Loop[Any]) -> LoopPosition | None:
        self.check_overrides()
        limit_torch_memory()
        self._reach_safe_point()
        keeps = binding.holds_state(self.bound)
        if self._restore_dir is not None and self._restored is None:
            if keeps:
                self.load()
            else:
                warn_once(
                    "there is a checkpoint, but nothing is bound (hop.bind): the loop begins at the "
                    "beginning",
                    kind="unbound",
                )
        outermost = not self._loop_stack.active
        try:
            position = self._loop_stack.push(loop)
        except LookupError as changed:
            warn_once(
                f"{changed.args[0]}: the script has changed, so this loop begins at the beginning",
                kind="changed",
            )
            position = None
        if (
            position is not None
            and position.complete == 1
            and loop.total is not None
            and loop.total > position.iterations
        ):
            told = (
                f"`{loop.name}` has {loop.total} turns now, {position.iterations} when it ended: the "
                "checkpoint is of a later loop, so none is added"
            )
            warn_once(told, kind="grown")
        if keeps and loop.must_iterate_skipped:
            loop.rng_state = (
                capture_rng() if position is None or position.rng_state is None else position.rng_state
            )
        if outermost:
            self._loop_started_at = time.monotonic()
            if position is None:
                self._report_progress(loop)
        return position

    def on_replay(self, position: LoopPosition) -> None:
        if position.rng_state is not None and self.rank() == 0:
            restore_rng(position.rng_state)

    def on_caught_up(self, loop: Loop[Any]) -> None:
        if self._restored is not None and not self._loop_stack.is_resuming and self.rank() == 0:
            restore_rng(self._restored.rng_states())
        if loop in self._loop_stack.active[:1]:
            self._report_progress(loop)

    def on_iteration(self, loop: Loop[Any]) -> None:
        self._loop_stack.record_iteration(loop)
        loop.has_unsaved_iterations = self._has_unsaved_iterations = True
        if loop.iterations % loop.save_every == 0 and binding.holds_state(self.bound):
            self._save_if_due()
            loop.has_unsaved_iterations = False
        if loop is self._loop_stack.active[0] and (
            loop.iterations == loop.total or time.monotonic() - self._progress_at >= _PROGRESS_INTERVAL_S
        ):
            self._report_progress(loop)
        if self._safe_points is not None and self._safe_points.reach():
            self._exit_for_preemption(self._safe_points)

    def on_exit(self, loop: Loop[Any], *, finished: bool) -> None:
        if finished and loop in self._loop_stack.active:
            # What comes after the last regular checkpoint is saved too; the position says that this loop is
            # through.
            self._loop_stack.pop(loop, finished=True)
            if loop.has_unsaved_iterations and binding.holds_state(self.bound):
                self._save_if_due(loop.iterations if not self._loop_stack.active else None)
            if not self._loop_stack.active:
                self._report_progress(loop)
        else:
            self._loop_stack.pop(loop, finished=finished)

    def _save_if_due(self, iterations: int | None = None) -> None:
        step = (
            iterations
            if iterations is not None and (self._last_step is None or iterations > self._last_step)
            else None
        )
        self.save(step, {})
        spent = time.monotonic() - self._loop_started_at
        if self._save_count == _MAX_SAVE_OVERHEAD_FACTOR and self._save_total_s > spent / 2:
            warn_once(
                "most of the time goes into checkpoints; hop.loop(…, every=N) saves them less often",
                kind="every",
            )

    def _reach_safe_point(self) -> None:
        """From now on this process has safe points, at which its run can be asked to make room."""
        if self.offline or (self._safe_points is not None and self._safe_points.pid == os.getpid()):
            return
        gang = self._environ.get("HOPYARD_GANG_DIR") or self.folder
        try:
            self._safe_points = SafePoints(self.folder, gang, self.rank(), self._world())
        except OSError as broken:
            warn_once(f"no safe points: {broken.strerror or broken}; the script goes on", kind="safe-points")
            return
        if self._safe_points.grace_expired:
            raise PreemptedExit

    def _exit_for_preemption(self, agreed: SafePoints) -> None:
        """All processes of the gang are at this turn: save it, and end."""
        if self._has_unsaved_iterations and binding.holds_state(self.bound):
            self.save(None, {})
            # a disk that is full now may have room before the grace is over
            while self._has_unsaved_iterations and agreed.wait_to_save():
                self.save(None, {})
        if self.rank() == 0:
            step, why = (
                (None, self._unsaved_reason) if self._has_unsaved_iterations else (self._last_step, "")
            )
            outcome = f"the checkpoint of step {step} is saved"
            if step is None:
                outcome = f"no checkpoint could be saved: {why}" if why else "nothing could be saved"
            reason, then = "making room", "this run resumes when there is room again"
            if agreed.at_limit:
                reason, then = (
                    "the time limit is reached",
                    "`hop fork RUN --checkpoint newest` resumes from the newest checkpoint",
                )
            warn_once(f"{reason}: {outcome}; {then}", kind="room")
            agreed.exit_preempted(step, why)
        else:
            agreed.exit_preempted(None)
        raise PreemptedExit

    def _world(self) -> int:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
        return _parse_int(self._environ.get("WORLD_SIZE"), 1)

    def _report_progress(self, loop: Loop[Any]) -> None:
        self._progress_at = time.monotonic()
        self.events.append("progress", done=loop.iterations, total=loop.total, unit=loop.name)


_session: Session | None = None
_opening = threading.Lock()


def current_session() -> Session:
    """This process's session, opened at the first use: the replica's folder under `hop run`, an offline
    folder elsewhere."""
    global _session
    if _session is None:
        with _opening:
            if _session is None:
                _session = _open_session()
    return _session


def _open_session() -> Session:
    replica, joined = os.environ.get("HOPYARD_REPLICA_DIR"), os.environ.get(FOLDER_VARIABLE)
    if replica:
        return Session(replica, os.environ, offline=False)
    if joined:
        return Session(joined, os.environ, offline=True)
    recording = OfflineRun(Home.default(), os.environ)
    recording.start()
    return Session(recording.folder, os.environ, offline=True, recording=recording)


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    if _session is not None:
        _session.metrics.reset_definitions()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(wait_for_gloo_threads)


def _parse_int(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


def _tags(text: str | None) -> dict[str, str]:
    import json

    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass
