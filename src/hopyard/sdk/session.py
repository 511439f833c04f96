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
from hopyard.sdk import bound as binding
from hopyard.sdk import checkpoints
from hopyard.sdk import params as parameters
from hopyard.sdk.bound import Bound
from hopyard.sdk.checkpoints import Contents, Position
from hopyard.sdk.gloo_threads import let_finish
from hopyard.sdk.gpu_share import keep_to_share
from hopyard.sdk.loop import Loop, Trail
from hopyard.sdk.metrics import MetricStream, Number, as_number, as_step
from hopyard.sdk.offline import FOLDER_VARIABLE, KEPT_CHECKPOINTS, OfflineRun
from hopyard.sdk.safepoint import DISK_FULL, MadeRoom, SafePoints
from hopyard.sdk.speak import say
from hopyard.sdk.state import put_chance, take_chance
from hopyard.sdk.streams import Events, sizes
from hopyard.sdk.this_run import ThisRun

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

_PROGRESS_EVERY_S = 0.2
_COSTLY_SAVES = 20  # after so many, a loop that mostly saves is told of `every`


class Session:
    """Opened by the first call that records something. `folder` is the replica's, or one like it."""

    def __init__(
        self, folder: str, environ: Mapping[str, str], *, offline: bool, recording: OfflineRun | None = None
    ) -> None:
        """recording: set in the process that an offline recording began in."""
        self.folder, self.offline, self._recording = folder, offline, recording
        self.metrics = MetricStream(os.path.join(folder, "streams", "metrics"), self.check_overrides)
        self.events = Events(os.path.join(folder, "streams", "events"))
        self.bound = Bound()
        self.declared: dict[str, ParamValue] = {}
        self._environ = environ
        self._overrides = parameters.read_overrides(environ.get("HOPYARD_PARAMS"))
        self._overrides_checked = False
        self._trail = Trail()
        self._restore_dir = environ.get("HOPYARD_RESTORE_DIR") or None
        self._restored: Contents | None = None
        self._last_step: int | None = None  # of the newest checkpoint, here or restored
        self._progress_at = 0.0
        self._saves, self._saving_s, self._looping_since = 0, 0.0, 0.0
        self._safe_points: SafePoints | None = None
        self._unsaved = False  # whether turns were made since the newest checkpoint
        self._unsaved_why = ""  # why the last try to save them failed

    # -- what a script declares
    # ----------------------------------------------------------------------------------

    def declare(self, defaults: Mapping[str, object]) -> dict[str, ParamValue]:
        """Parameters with overrides applied; recorded together with those declared before."""
        keep_to_share()
        values = parameters.resolve(defaults, self._overrides)
        self.declared.update(values)
        self.events.tell("params", values=self.declared)
        return values

    def check_overrides(self) -> None:
        """Tell of overrides that the script never declared; called once the script has begun its work."""
        if not self._overrides_checked:
            self._overrides_checked = True
            if self.rank() == 0:
                for sentence in parameters.unknown_overrides(self._overrides, self.declared):
                    say(sentence, once=sentence)

    def summarise(self, values: Mapping[str, Number]) -> None:
        self.events.tell("summary", values={name: as_number(name, value) for name, value in values.items()})

    def used_dataset(self, name: str, version: int) -> None:
        if self._recording is not None:
            self._recording.used(name, version)

    def rank(self) -> int:
        """This process's rank: as torch.distributed says once it is set up, else the launcher's variable."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return _int(self._environ.get("RANK"), 0)

    def this_run(self) -> ThisRun:
        environ, name = self._environ, os.path.basename(self.folder)
        step = environ.get("HOPYARD_RESTORE_STEP")
        return ThisRun(
            id=environ.get("HOPYARD_RUN_ID") or name,
            name=environ.get("HOPYARD_RUN") or name,
            folder=Path(self.folder),
            offline=self.offline,
            attempt=environ.get("HOPYARD_ATTEMPT", ""),
            url="" if self.offline else environ.get("HOPYARD_URL", ""),
            rank=self.rank(),
            local_rank=_int(environ.get("LOCAL_RANK"), 0),
            world_size=_int(environ.get("WORLD_SIZE"), 1),
            role=environ.get("ROLE_NAME") or "worker",
            restored_step=_int(step, 0) if step and self._restore_dir else None,
            params=dict(self.declared),
            tags=_tags(environ.get("HOPYARD_TAGS")),
        )

    # -- checkpoints
    # ---------------------------------------------------------------------------------------------

    def save(self, step: SupportsIndex | None, metrics: Mapping[str, Number]) -> Path | None:
        """Save the bound objects; where they are, None when it is not this process's to save or the disk
        refuses."""
        number = self._next_step() if step is None else as_step(step)
        if number < 0:
            raise SpecError(
                f"hop.save: step {number}", hints=("a checkpoint's step is a whole number from 0",)
            )
        given = {name: as_number(name, value) for name, value in metrics.items()}
        if self.rank() != 0:
            self._note_turn(number)
            return None
        latest = {
            name: value for name, value in {**self.metrics.latest, **given}.items() if math.isfinite(value)
        }
        offsets, peers = self._offsets(), self._offsets_of_peers()
        root = os.path.join(self.folder, "checkpoints")
        began = time.monotonic()
        try:
            folder = checkpoints.write(
                root,
                number,
                binding.objects(self.bound),
                self._trail.positions(),
                latest,
                run=self.this_run().id,
                logged=self.metrics.counts,
            )
        except OSError as broken:
            say(
                f"no checkpoint of step {number}: {broken.strerror or broken}; the script goes on",
                once=f"save-{broken.errno}",
            )
            self._unsaved_why = DISK_FULL if is_disk_full(broken) else broken.strerror or str(broken)
            return None
        self._saves, self._saving_s = self._saves + 1, self._saving_s + time.monotonic() - began
        self._last_step, self._unsaved = number, False
        self.events.tell(
            "checkpoint",
            step=number,
            folder=os.path.relpath(folder, self.folder),
            offsets=offsets,
            metrics=latest,
            **({"peers": peers} if peers else {}),
        )
        if self.offline:
            checkpoints.keep_newest(root, KEPT_CHECKPOINTS)
        return Path(folder)

    def _note_turn(self, step: int) -> None:
        """Rank 0 saves here; this rank notes how far its streams are, so that they roll back with those of
        rank 0."""
        self._last_step, self._unsaved = step, False
        if not self.offline:
            self.events.tell("turn", step=step, offsets=self._offsets())

    def _offsets(self) -> dict[str, int]:
        """How long this process's streams are, with all that it has said."""
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        return sizes(os.path.join(self.folder, "streams"))

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
        found = {rank: sizes(os.path.join(gang, rank, "streams")) for rank in sorted(ranks)}
        return {rank: lengths for rank, lengths in found.items() if lengths}

    def _next_step(self) -> int:
        """Turns of the outermost loop that are done; larger than any step before, so that the newest is the
        largest."""
        done = self._trail.active[0].done if self._trail.active else 0
        return done if self._last_step is None else max(done, self._last_step + 1)

    def load(self) -> int | None:
        """Restore the bound objects from the checkpoint that this attempt starts from; its step, None without
        one."""
        if self._restore_dir is None:
            return None
        contents = checkpoints.read(
            self._restore_dir, foreign=self._environ.get("HOPYARD_RESTORE_FOREIGN") == "1"
        )
        binding.restore(self.bound, contents)
        self._trail.expect(contents.positions)
        self._restored, self._last_step = contents, contents.step
        if contents.run:
            self.metrics.go_on(contents.logged, of_other_run=contents.run != self.this_run().id)
        # the generators that were saved are rank 0's; all alike would be worse than new ones
        if self.rank() == 0:
            put_chance(contents.chance())
            say(f"resumed from the checkpoint of step {contents.step}", once="resumed")
        return contents.step

    # -- what loops tell (see loop.Keeper)
    # -----------------------------------------------------------------------

    def entered(self, loop: Loop[Any]) -> Position | None:
        self.check_overrides()
        keep_to_share()
        self._meet()
        keeps = binding.holds_state(self.bound)
        if self._restore_dir is not None and self._restored is None:
            if keeps:
                self.load()
            else:
                say(
                    "there is a checkpoint, but nothing is bound (hop.bind): the loop begins at the "
                    "beginning",
                    once="unbound",
                )
        outermost = not self._trail.active
        try:
            position = self._trail.enter(loop)
        except LookupError as changed:
            say(
                f"{changed.args[0]}: the script has changed, so this loop begins at the beginning",
                once="changed",
            )
            position = None
        if (
            position is not None
            and position.finished == 1
            and loop.total is not None
            and loop.total > position.done
        ):
            told = (
                f"`{loop.name}` has {loop.total} turns now, {position.done} when it ended: the "
                "checkpoint is of a later loop, so none is added"
            )
            say(told, once="grown")
        if keeps and loop.draws:
            loop.chance = take_chance() if position is None or position.chance is None else position.chance
        if outermost:
            self._looping_since = time.monotonic()
            if position is None:
                self._tell_progress(loop)
        return position

    def replay(self, position: Position) -> None:
        if position.chance is not None and self.rank() == 0:
            put_chance(position.chance)

    def skipped(self, loop: Loop[Any]) -> None:
        if self._restored is not None and not self._trail.resuming and self.rank() == 0:
            put_chance(self._restored.chance())
        if loop in self._trail.active[:1]:
            self._tell_progress(loop)

    def turned(self, loop: Loop[Any]) -> None:
        self._trail.turn(loop)
        loop.unsaved = self._unsaved = True
        if loop.done % loop.every == 0 and binding.holds_state(self.bound):
            self._save_turn()
            loop.unsaved = False
        if loop is self._trail.active[0] and (
            loop.done == loop.total or time.monotonic() - self._progress_at >= _PROGRESS_EVERY_S
        ):
            self._tell_progress(loop)
        if self._safe_points is not None and self._safe_points.turned():
            self._make_room(self._safe_points)

    def left(self, loop: Loop[Any], *, finished: bool) -> None:
        if finished and loop in self._trail.active:
            # What comes after the last regular checkpoint is saved too; the position says that this loop is
            # through.
            self._trail.leave(loop, finished=True)
            if loop.unsaved and binding.holds_state(self.bound):
                self._save_turn(loop.done if not self._trail.active else None)
            if not self._trail.active:
                self._tell_progress(loop)
        else:
            self._trail.leave(loop, finished=finished)

    def _save_turn(self, done: int | None = None) -> None:
        step = done if done is not None and (self._last_step is None or done > self._last_step) else None
        self.save(step, {})
        spent = time.monotonic() - self._looping_since
        if self._saves == _COSTLY_SAVES and self._saving_s > spent / 2:
            say(
                "most of the time goes into checkpoints; hop.loop(…, every=N) saves them less often",
                once="every",
            )

    def _meet(self) -> None:
        """From now on this process has safe points, at which its run can be asked to make room."""
        if self.offline or (self._safe_points is not None and self._safe_points.pid == os.getpid()):
            return
        gang = self._environ.get("HOPYARD_GANG_DIR") or self.folder
        try:
            self._safe_points = SafePoints(self.folder, gang, self.rank(), self._world())
        except OSError as broken:
            say(f"no safe points: {broken.strerror or broken}; the script goes on", once="safe-points")
            return
        if self._safe_points.over:
            raise MadeRoom

    def _make_room(self, agreed: SafePoints) -> None:
        """All processes of the gang are at this turn: save it, and end."""
        if self._unsaved and binding.holds_state(self.bound):
            self.save(None, {})
            # a disk that is full now may have room before the grace is over
            while self._unsaved and agreed.wait_to_save():
                self.save(None, {})
        if self.rank() == 0:
            step, why = (None, self._unsaved_why) if self._unsaved else (self._last_step, "")
            outcome = f"the checkpoint of step {step} is saved"
            if step is None:
                outcome = f"no checkpoint could be saved: {why}" if why else "nothing could be saved"
            reason, then = "making room", "this run resumes when there is room again"
            if agreed.at_limit:
                reason, then = (
                    "the time limit is reached",
                    "`hop fork RUN --checkpoint newest` resumes from the newest checkpoint",
                )
            say(f"{reason}: {outcome}; {then}", once="room")
            agreed.leave(step, why)
        else:
            agreed.leave(None)
        raise MadeRoom

    def _world(self) -> int:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
        return _int(self._environ.get("WORLD_SIZE"), 1)

    def _tell_progress(self, loop: Loop[Any]) -> None:
        self._progress_at = time.monotonic()
        self.events.tell("progress", done=loop.done, total=loop.total, unit=loop.name)


_session: Session | None = None
_opening = threading.Lock()


def current() -> Session:
    """This process's session, opened at the first use: the replica's folder under `hop run`, an offline
    folder elsewhere."""
    global _session
    if _session is None:
        with _opening:
            if _session is None:
                _session = _open()
    return _session


def _open() -> Session:
    replica, joined = os.environ.get("HOPYARD_REPLICA_DIR"), os.environ.get(FOLDER_VARIABLE)
    if replica:
        return Session(replica, os.environ, offline=False)
    if joined:
        return Session(joined, os.environ, offline=True)
    recording = OfflineRun(Home.default(), os.environ)
    recording.begin()
    return Session(recording.folder, os.environ, offline=True, recording=recording)


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    if _session is not None:
        _session.metrics.forget_definitions()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(let_finish)


def _int(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise


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
