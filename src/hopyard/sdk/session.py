"""The state of one process in a run: its streams, its bound objects, its position.

`api.py` has the functions of `import hopyard`, which share this session. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, SupportsIndex

from hopyard.config.home import CONSOLE_VARIABLE, Home
from hopyard.domain.metric_values import encode_values
from hopyard.domain.restart_policy import RESTART_COUNT_VARIABLE, RESTART_STEPS_VARIABLE
from hopyard.domain.run import UNSTORED
from hopyard.errors import SpecError, is_disk_full
from hopyard.sdk import bound_objects as binding
from hopyard.sdk import checkpoints
from hopyard.sdk import params as parameters
from hopyard.sdk.best_metric import BestMetric
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.checkpoints import CheckpointContents, LoopPosition
from hopyard.sdk.command_file import last_answered, values_set_before
from hopyard.sdk.exit_code import main_frame
from hopyard.sdk.gloo_threads import wait_for_gloo_threads
from hopyard.sdk.gpu_share import limit_torch_memory
from hopyard.sdk.live_control import LiveControl
from hopyard.sdk.loop_exit import is_at_end
from hopyard.sdk.loop_generators import LoopGenerators
from hopyard.sdk.media_stream import MediaStream
from hopyard.sdk.metrics import Loggable, MetricStream, Number, to_numbers, to_step
from hopyard.sdk.object_state import capture_rng, restore_rng
from hopyard.sdk.offline import FOLDER_VARIABLE, MAX_CHECKPOINTS, OfflineRun, make_passing_folder
from hopyard.sdk.params import Params
from hopyard.sdk.process_group import ProcessGroup, parse_int
from hopyard.sdk.prompt_point import PromptPoint
from hopyard.sdk.resumable_loop import Loop, LoopExit, LoopStack
from hopyard.sdk.run_context import RunContext
from hopyard.sdk.safe_points import DISK_FULL_REASON, PreemptedExit, SafePoints
from hopyard.sdk.startup.param_reads import record as record_reads
from hopyard.sdk.stream_offsets import offsets_of_peers, own_offsets
from hopyard.sdk.streams import EventStream
from hopyard.sdk.warn_once import warn_once

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

_PROGRESS_INTERVAL_S = 0.2
_MAX_SAVE_OVERHEAD_FACTOR = 20  # saves after which a loop that mostly saves gets a warning about `every`


class MetricSink(Protocol):
    """A receiver of metrics."""

    def write(self, step: SupportsIndex | None, metrics: Mapping[str, Loggable], /) -> None: ...


class Session:
    """Created by the first call that records something. `folder` is the replica's, or an offline folder of
    the same form."""

    def __init__(
        self, folder: str, environ: Mapping[str, str], *, offline: bool, recording: OfflineRun | None = None
    ) -> None:
        """recording: set in the process that began an offline recording."""
        self.folder, self.offline, self._recording = folder, offline, recording
        self.events = EventStream(os.path.join(folder, "streams", "events"))
        self.media = MediaStream(folder, environ, self._record_unstored)
        self.metrics = MetricStream(
            os.path.join(folder, "streams", "metrics"), self.check_overrides, self.media.write
        )
        self.bound, self.best_metric = BoundObjects(), BestMetric()
        self._summary: dict[str, float] = {}
        self.declared: dict[str, ParamValue] = {}
        self._environ, self.group = environ, ProcessGroup(environ)
        self._overrides = parameters.read_overrides(environ.get("HOPYARD_PARAMS"))
        gang = environ.get("HOPYARD_GANG_DIR")
        self._live_values, self._begun_with = ({}, None) if offline or not gang else self._read_live(gang)
        self._overrides_checked = False
        self.control = LiveControl(self.bound, self.declared, self.events.append)
        self._loop_stack, self._loop_generators = LoopStack(), LoopGenerators()
        self._prompts = PromptPoint(folder, self.bound, self.control.params)
        self.control.while_paused = lambda: self._prompts.reach(self._completed_iterations())
        self._restore_dir = environ.get("HOPYARD_RESTORE_DIR") or None
        self._restored: CheckpointContents | None = None
        self._last_step: int | None = None  # of the newest checkpoint, here or restored
        self._progress_at = 0.0
        self._save_count, self._save_total_s, self._loop_started_at = 0, 0.0, 0.0
        self._safe_points: SafePoints | None = None
        self._has_unsaved_iterations = False  # whether iterations ran since the newest checkpoint
        self._unsaved_reason = ""  # why the last attempt to save them failed
        self._pid, self._main = os.getpid(), main_frame()
        # whether `hop.log` is a safe point: in scripts without `hop.loop`
        self.acts_at_log = not offline
        self._main_thread = threading.main_thread().ident
        self._logged_step: SupportsIndex | None = None
        self._logged_points = 0

    def _read_live(self, gang: str) -> tuple[dict[str, ParamValue], int | None]:
        """Returns what this process begins with, as `values_set_before`."""
        is_restarted = RESTART_COUNT_VARIABLE in self._environ
        answered = last_answered(os.path.join(self.folder, "streams", "events")) if is_restarted else None
        try:
            return values_set_before(gang, rank=self.group.rank(), answered=answered)
        except OSError:
            return {}, None

    # -- declarations of the script
    # ------------------------------------------------------------------------------

    def declare_params(self, defaults: Mapping[str, object]) -> Params:
        """Returns the parameters with overrides applied, and records them with those declared before."""
        limit_torch_memory()
        values = parameters.resolve_params(defaults, {**self._overrides, **self._live_values})
        self.declared.update(parameters.recorded_values(values))
        self.events.append("params", values=self.declared)
        if self._environ.get("HOPYARD_PARAMS_GIVEN"):
            record_reads("hop.params", [name for name in values if name in self._overrides])
        params = Params(values)
        # the types of the values; None accepts any
        self.control.params.add(
            params, {name: None if defaults[name] is None else value for name, value in values.items()}
        )
        return params

    def record_scaled(self, values: Mapping[str, float], text: str) -> None:
        """Records the values that a batch-size rule made of given ones; see `ScaledParams`."""
        if self.group.rank() == 0:
            self.events.append("scaled", values=values)
            warn_once(text)

    def check_overrides(self) -> None:
        """Warns about overrides that the script did not declare; called once the script has begun
        its work. Parameters in the command, in variables or in a notebook are not meant for
        `hop.params`. An evaluator has the parameters of the training, which it need not declare."""
        if not self._overrides_checked:
            self._overrides_checked = True
            if self.group.rank() == 0 and "HOPYARD_EVALUATION" not in self._environ:
                given = parameters.read_overrides(self._environ.get("HOPYARD_PARAMS_GIVEN"))
                own = {name: value for name, value in self._overrides.items() if name not in given}
                for sentence in parameters.unknown_overrides(own, self.declared):
                    warn_once(sentence, kind=sentence)

    def record_summary(self, values: Mapping[str, Number]) -> None:
        converted = to_numbers(values, function="hop.summary")
        self._summary.update(converted)
        self.events.append("summary", values=converted)

    def record_alert(self, text: str, title: str, level: str) -> None:
        self.events.append("alert", text=text, title=title, level=level)

    def _record_unstored(self, text: str) -> None:
        self.events.append(UNSTORED, text=text)

    def record_dataset(self, name: str, version: int) -> None:
        if self._recording is not None:
            self._recording.record_dataset(name, version)

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
            rank=self.group.rank(),
            local_rank=parse_int(environ.get("LOCAL_RANK"), 0),
            world_size=parse_int(environ.get("WORLD_SIZE"), 1),
            role=environ.get("ROLE_NAME") or "worker",
            restored_step=parse_int(step, 0) if step and self._restore_dir else None,
            replica=environ.get("HOPYARD_REPLICA") or "worker-0",
            hosts=_texts(environ.get("HOPYARD_HOSTS")),
            workspace=Path(environ["HOPYARD_WORKSPACE"]) if environ.get("HOPYARD_WORKSPACE") else None,
            params=dict(self.declared),
            tags=_texts(environ.get("HOPYARD_TAGS")),
        )

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(
        self, step: SupportsIndex | None, metrics: Mapping[str, Number], *, keep: bool = False
    ) -> Path | None:
        """Saves the bound objects and returns the folder. Returns None if another process saves them or if
        the disk fails. keep: exempts the checkpoint from retention."""
        number = self._next_step() if step is None else to_step(step)
        if number < 0:
            raise SpecError(
                f"hop.save: step {number}", hints=("a checkpoint's step is a whole number from 0",)
            )
        converted = to_numbers(metrics, function="hop.save")
        if self.group.rank() != 0:
            self._record_iteration(number)
            return None
        latest = {**self._summary, **self.metrics.latest, **converted}
        best_by = self.best_metric.rule(self._summary, latest)
        gang = self._environ.get("HOPYARD_GANG_DIR") if self.group.world_size() > 1 else None
        offsets, peers = own_offsets(self.folder), offsets_of_peers(gang, self.folder)
        root = os.path.join(self.folder, "checkpoints")
        started_at = time.monotonic()
        try:
            folder = checkpoints.write_checkpoint(
                root,
                number,
                binding.bound_objects(self.bound),
                self._loop_stack.positions(),
                latest,
                run=self.this_run().id,
                metric_counts=self.metrics.metric_counts,
                kept=keep,
                best_by=best_by,
                settings=binding.built_settings(self.bound),
                loop_generators=self._loop_generators.capture(),
            )
        except OSError as error:
            warn_once(
                f"no checkpoint of step {number}: {error.strerror or error}; the script continues",
                kind=f"save-{error.errno}",
            )
            self._unsaved_reason = DISK_FULL_REASON if is_disk_full(error) else error.strerror or str(error)
            return None
        self._save_count, self._save_total_s = (
            self._save_count + 1,
            self._save_total_s + time.monotonic() - started_at,
        )
        self._last_step, self._has_unsaved_iterations = number, False
        self.events.append(
            "checkpoint",
            step=number,
            folder=os.path.relpath(folder, self.folder),
            offsets=offsets,
            metrics=encode_values(latest),
            **({"peers": peers} if peers else {}),
            **({"kept": True} if keep else {}),
            **({"best_by": best_by} if best_by else {}),
        )
        if self.offline:
            checkpoints.prune_checkpoints(root, MAX_CHECKPOINTS)
        return Path(folder)

    def _record_iteration(self, step: int) -> None:
        """Records the sizes of this rank's streams, so that they roll back with those of rank 0, which saves
        now."""
        self._last_step, self._has_unsaved_iterations = step, False
        if not self.offline:
            self.events.append("turn", step=step, offsets=own_offsets(self.folder))

    def _next_step(self) -> int:
        """Returns the completed iterations of the outermost loop, or a larger number than any earlier step.
        The newest checkpoint always has the largest step."""
        iterations = self._loop_stack.active[0].iterations if self._loop_stack.active else 0
        return iterations if self._last_step is None else max(iterations, self._last_step + 1)

    def load(self) -> int | None:
        """Restores the bound objects from the checkpoint that this attempt starts from. Returns its step, or
        None if there is none."""
        if self._restore_dir is None:
            return None
        contents = checkpoints.read_checkpoint(
            self._restore_dir, is_untrusted=self._environ.get("HOPYARD_RESTORE_FOREIGN") == "1"
        )
        binding.restore(self.bound, contents)
        is_other_run = bool(contents.run_id) and contents.run_id != self.this_run().id
        self._loop_stack.set_resume_positions(contents.positions, is_other_run=is_other_run)
        self._restored, self._last_step = contents, contents.step
        self.best_metric.continue_from(contents.metrics)
        if contents.run_id:
            self.metrics.continue_counts(contents.metric_counts, is_other_run=is_other_run)
        # the saved generators are those of rank 0; the same state in all ranks would be worse than new ones
        if self.group.rank() == 0:
            restore_rng(contents.rng_states())
            self._loop_generators.resume_from(contents.rng_states().get("loops"))
            warn_once(f"resumed from the checkpoint of step {contents.step}", kind="resumed")
        return contents.step

    # -- events of loops (see LoopObserver)
    # -------------------------------------------------------------------

    def on_enter(self, loop: Loop[Any]) -> LoopPosition | None:
        self.check_overrides()
        limit_torch_memory()
        self._reach_safe_point()
        holds_state = binding.holds_state(self.bound)
        if self._restore_dir is not None and self._restored is None:
            if holds_state:
                self.load()
            else:
                warn_once(
                    "there is a checkpoint, but nothing is bound (hop.bind): the loop starts at the "
                    "beginning",
                    kind="unbound",
                )
        outermost = not self._loop_stack.active
        try:
            position = self._loop_stack.push(loop)
        except LookupError as error:
            warn_once(
                f"{error.args[0]}: the script has changed, so this loop starts at the beginning",
                kind="changed",
            )
            position = None
        if (
            position is not None
            and position.complete == 1
            and not position.stopped
            and loop.total is not None
            and loop.total > position.iterations
        ):
            message = (
                f"`{loop.name}` has {loop.total} iterations now, {position.iterations} when it ended: the "
                "checkpoint is of a later loop, so none is added"
            )
            warn_once(message, kind="grown")
        if holds_state and loop.must_iterate_skipped:
            state = self._loop_generators.enter(loop, self.bound, position)
            loop.rng_state = (
                {**capture_rng(), "own": state}
                if position is None or position.rng_state is None
                else position.rng_state
            )
        if outermost:
            self._loop_started_at = time.monotonic()
            if position is None:
                self._report_progress(loop)
        return position

    def on_replay(self, loop: Loop[Any], position: LoopPosition) -> None:
        if position.rng_state is not None:
            self._loop_generators.replay(
                loop, position.rng_state.get("own"), is_rank_0=self.group.rank() == 0
            )
            if self.group.rank() == 0:
                restore_rng(position.rng_state)

    def on_caught_up(self, loop: Loop[Any]) -> None:
        if self._restored is not None and not self._loop_stack.is_resuming and self.group.rank() == 0:
            restore_rng(self._restored.rng_states())
        self._loop_generators.catch_up()
        if loop in self._loop_stack.active[:1]:
            self._report_progress(loop)

    def on_iteration(self, loop: Loop[Any]) -> None:
        self._loop_stack.record_iteration(loop)
        loop.has_unsaved_iterations = self._has_unsaved_iterations = True
        is_best = self.best_metric.is_improved_by(self.metrics.latest)
        if (is_best or loop.iterations % loop.save_every == 0) and binding.holds_state(self.bound):
            self._save_if_due()
            loop.has_unsaved_iterations = False
        if loop is self._loop_stack.active[0] and (
            loop.iterations == loop.total or time.monotonic() - self._progress_at >= _PROGRESS_INTERVAL_S
        ):
            self._report_progress(loop)
        self._prompts.reach(self._completed_iterations())
        if self._safe_points is not None and self.control.obey(
            self._safe_points,
            self._safe_points.reach(),
            step=self._loop_stack.active[0].iterations,
            loops=self._loop_stack.active,
        ):
            self._exit_for_preemption(self._safe_points)

    def on_exit(self, loop: Loop[Any], how: LoopExit) -> None:
        was_active = loop in self._loop_stack.active
        self._loop_stack.pop(loop, how)
        if self._safe_points is not None and not self._loop_stack.active:
            self._safe_points.leave_loop()
        if how is LoopExit.FAILED or not was_active:
            return
        self._has_unsaved_iterations |= loop.has_unsaved_iterations
        # Iterations after the last regular checkpoint are saved. The position marks this loop as complete.
        if loop.has_unsaved_iterations and binding.holds_state(self.bound):
            self._save_if_due(loop.iterations if not self._loop_stack.active else None)
        if not self._loop_stack.active:
            self._report_progress(loop)

    def close_loops(self) -> None:
        """Saves the loops that the script left by `break` although a variable still holds their iterator.
        Called at the end of the script."""
        main = self._main
        if self._pid != os.getpid() or main is None:
            return
        for loop in reversed(self._loop_stack.active):
            if loop.is_left_before_exit(main) or (loop.is_inside and is_at_end(main)):
                loop.count_interrupted()
                self.on_exit(loop, LoopExit.STOPPED)

    def _save_if_due(self, iterations: int | None = None) -> None:
        step = (
            iterations
            if iterations is not None and (self._last_step is None or iterations > self._last_step)
            else None
        )
        self.save(step, {})
        elapsed_s = time.monotonic() - self._loop_started_at
        if self._save_count == _MAX_SAVE_OVERHEAD_FACTOR and self._save_total_s > elapsed_s / 2:
            warn_once(
                "checkpoints take most of the time; hop.loop(…, every=N) saves them less often",
                kind="every",
            )

    def _reach_safe_point(self) -> None:
        """From now on this process has safe points, at which its run can be preempted."""
        self.acts_at_log = False
        earlier = self._safe_points
        if self.offline:
            return
        if earlier is not None and earlier.pid == os.getpid() and not earlier.by_log:
            earlier.begin_loop()
            return
        if earlier is not None and earlier.by_log:
            earlier.close()
        self._safe_points = self._begin_safe_points(by_log=False)
        if self._safe_points is not None and self._safe_points.grace_expired:
            raise PreemptedExit

    def reach_log(self, step: SupportsIndex | None) -> None:
        """A point is logged outside of loops: a safe point, at which the commands of users are applied. The
        points of one step are one safe point. Only the main thread waits at it."""
        if threading.get_ident() != self._main_thread:
            return
        if step is not None:
            if step == self._logged_step:
                return
            self._logged_step = step
        safe_points = self._safe_points
        if safe_points is None:
            safe_points = self._safe_points = self._begin_safe_points(by_log=True)
            if safe_points is None:
                self.acts_at_log = False
                return
        self._logged_points += 1
        self._prompts.reach(self._logged_points if step is None else to_step(step))
        action = safe_points.reach()
        if action is not None:
            self.control.obey(
                safe_points, action, step=self._logged_points if step is None else to_step(step)
            )

    # -- loops of frameworks, see `framework_loop.py`
    # ------------------------------------------------------------------------------

    def begin_framework_loop(self) -> None:
        """From now on the batches of a framework are safe points. Raises PreemptedExit in a process that is
        restarted after its gang has stopped."""
        self.check_overrides()
        limit_torch_memory()
        self._reach_safe_point()

    def reach_batch(self, step: int, *, may_stop: bool) -> bool:
        """Applies commands, and waits while the run is paused. Returns whether this process must end. step:
        of the framework. may_stop: as in `SafePoints.reach`."""
        self._logged_points = step
        self._prompts.reach(step)
        points = self._safe_points
        return points is not None and self.control.obey(points, points.reach(may_stop=may_stop), step=step)

    def end_framework_loop(self) -> None:
        if self._safe_points is not None and not self._loop_stack.active:
            self._safe_points.leave_loop()

    def exit_framework_loop(self, step: int | None) -> NoReturn:
        """Ends this process at a safe point. step: of the newest checkpoint of the framework."""
        if self._safe_points is not None:
            self._safe_points.exit_preempted(step if self.group.rank() == 0 else None)
        raise PreemptedExit

    def _begin_safe_points(self, *, by_log: bool) -> SafePoints | None:
        gang = self._environ.get("HOPYARD_GANG_DIR") or self.folder
        rank, world = self.group.rank(), self.group.world_size()
        applied = self._begun_with if self._safe_points is None else self._safe_points.applied
        try:
            safe_points = SafePoints(
                self.folder,
                gang,
                rank,
                world,
                applied,
                by_log=by_log,
                restarted_after=self._restarted_after(),
                independent=self.group.independent_ranks(),
            )
            self._prompts.announce(self.group.rank())
        except OSError as error:
            warn_once(f"no safe points: {error.strerror or error}; the script continues", kind="safe-points")
            return None
        self.events.append("safe-points")
        return safe_points

    def _restarted_after(self) -> int | None:
        """Returns how many iterations of this attempt the checkpoint holds from which this process was
        started again; None for the first process of a replica."""
        if RESTART_COUNT_VARIABLE not in self._environ:
            return None
        return parse_int(self._environ.get(RESTART_STEPS_VARIABLE), 0)

    def _completed_iterations(self) -> int:
        """Returns the step of the present safe point."""
        active = self._loop_stack.active
        return active[0].iterations if active else self._logged_points

    def _exit_for_preemption(self, safe_points: SafePoints) -> None:
        """Saves the iteration at which all processes of the gang have stopped, and ends this process."""
        if self._has_unsaved_iterations and binding.holds_state(self.bound):
            self.save(None, {})
            # a full disk may have space again before the grace period is over
            while self._has_unsaved_iterations and safe_points.wait_to_save():
                self.save(None, {})
        if self.group.rank() == 0:
            step, unsaved_reason = (
                (None, self._unsaved_reason) if self._has_unsaved_iterations else (self._last_step, "")
            )
            outcome = f"the checkpoint of step {step} is saved"
            if step is None:
                outcome = (
                    f"no checkpoint could be saved: {unsaved_reason}"
                    if unsaved_reason
                    else "nothing could be saved"
                )
            reason, next_step = "preempted", "this run resumes when there is capacity again"
            if safe_points.at_limit:
                reason, next_step = (
                    "the time limit is reached",
                    "`hop fork RUN --checkpoint newest` resumes from the newest checkpoint",
                )
            warn_once(f"{reason}: {outcome}; {next_step}", kind="room")
            safe_points.exit_preempted(step, unsaved_reason)
        else:
            safe_points.exit_preempted(None)
        raise PreemptedExit

    def _report_progress(self, loop: Loop[Any]) -> None:
        self._progress_at = time.monotonic()
        self.events.append("progress", done=loop.iterations, total=loop.total, unit=loop.name)


_session: Session | None = None
metric_sink: MetricSink | None = None  # receives the metrics of `hop.log` in place of the session, if set
_opening = threading.Lock()


def current_session() -> Session:
    """Returns this process's session and opens it at the first use: the replica's folder under `hop run`, an
    offline folder elsewhere. A command beside the script has a folder that ends with it."""
    global _session
    if _session is None:
        with _opening:
            if _session is None:
                _session = parameters.recorder = _open_session()
    return _session


def _open_session() -> Session:
    replica, offline_folder = os.environ.get("HOPYARD_REPLICA_DIR"), os.environ.get(FOLDER_VARIABLE)
    if replica and os.environ.get(CONSOLE_VARIABLE):
        warn_once("this command is not the script: the run records nothing of it", kind="console")
        return Session(make_passing_folder(), os.environ, offline=True)
    if replica:
        return Session(replica, os.environ, offline=False)
    if offline_folder:
        return Session(offline_folder, os.environ, offline=True)
    recording = OfflineRun(Home.default(), os.environ)
    recording.start()
    return Session(recording.folder, os.environ, offline=True, recording=recording)


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    if _session is not None:
        _session.metrics.reset_definitions()
        _session.media.reset()
        _session.acts_at_log = False


os.register_at_fork(after_in_child=_after_fork)


def _close_loops() -> None:
    if _session is not None:
        _session.close_loops()


atexit.register(wait_for_gloo_threads)
atexit.register(_close_loops)  # runs before it


def _texts(text: str | None) -> dict[str, str]:
    import json

    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in values.items()} if isinstance(values, dict) else {}
