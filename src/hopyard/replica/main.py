"""The life of one replica: prepare, launch, watch, ship the last byte, report the exit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.replica import ReplicaSpec, ReplicaState, StopOrder
from hopyard.domain.run import RunEventKind
from hopyard.domain.run_environment import as_told, for_runs
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.domain.study import GOES_ON
from hopyard.errors import (
    BlobsElsewhere,
    Conflict,
    HopyardError,
    IntegrityError,
    MissingBlobs,
    NotFound,
    is_passing,
)
from hopyard.private_files import open_file, open_plain
from hopyard.replica import boards, process
from hopyard.replica.adopt import boot_id, end_leftovers, started_ticks
from hopyard.replica.boards import TensorBoard
from hopyard.replica.checkpoints import AGAIN, RETRY_S, Checkpoints, Patience
from hopyard.replica.diary import say
from hopyard.replica.failure import PrepareFailed, StopRequested, failure_of
from hopyard.replica.folder import Folder
from hopyard.replica.gpu_memory import EVERY_S, GpuMemoryWatch
from hopyard.replica.guard import Guard
from hopyard.replica.left_behind import LeftBehind
from hopyard.replica.limits import Groups, MemoryWatch
from hopyard.replica.outbox import push_files, stage_files
from hopyard.replica.outputs import KEPT, Obstacle, Outputs, Stamps, sentence_of, stamps, storable, written
from hopyard.replica.prepare import Preparation, tree_cache, view_of_home
from hopyard.replica.rendezvous import variables
from hopyard.replica.server import ServerLine
from hopyard.replica.ship import Shipper, StopWord
from hopyard.replica.supervise import Periodic, Supervisor, Wakeup
from hopyard.replica.system import FIRST_S, SystemMetrics
from hopyard.sdk.output_limit import OutputLimit
from hopyard.sdk.report_limit import ReportLimit


def redirect(folder: Path) -> None:
    """Standard streams of a replica without a terminal: nothing in, everything out into its log."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = open_file(folder / "replica.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def run(folder: Path, *, adopt: bool, lock: int, umask: int, namespace: int | None = None) -> int:
    """Live this replica's life, with its folder's lock held in descriptor `lock` until the end. umask: of the
    user's process. namespace: the user namespace of its gang's processes on this node. Returns the program's
    exit code."""
    place = Folder(folder)
    state = place.read_state()
    if state is not None and (state.shipped or not adopt):
        return 0
    try:
        spec = place.read_spec()
    except HopyardError as damaged:
        say(f"replica: {damaged}")
        return 1
    replica = Replica(
        place, spec, adopted=state if adopt else None, is_adoption=adopt, umask=umask, namespace=namespace
    )
    guard = None if adopt else Guard(place, spec, lock)
    replica.live()
    if guard is not None:
        guard.dismiss()
    os.close(lock)
    return 0


class Replica:
    """One replica of one attempt. See `docs/internals/replica.md`."""

    def __init__(
        self,
        folder: Folder,
        spec: ReplicaSpec,
        *,
        adopted: ReplicaState | None = None,
        is_adoption: bool = False,
        umask: int = 0o022,
        namespace: int | None = None,
    ) -> None:
        self._folder, self._spec, self._umask, self._namespace = folder, spec, umask, namespace
        self._is_adoption, self._adopted = is_adoption, adopted
        self._state = ReplicaState(
            ReplicaPhase.PREPARING, os.getpid(), boot=boot_id(), started_at=time.time()
        )
        launch = spec.launch
        self._server = ServerLine(
            folder, url=launch.server_url, token=launch.token, home=Home(Path(spec.node.home))
        )
        self._wakeup = Wakeup()
        self._left_behind = LeftBehind(folder, spec)
        self._output = OutputLimit(spec.node.max_output_bytes)
        # what lay in the run's folder before its script began, where that is known
        self._before: Stamps | None = None
        self._reports = ReportLimit(spec.node.max_metrics_bytes, folder.root / "reports", say=say)
        self._checkpoints = Checkpoints(folder, spec, self._server, self._left_behind, self._server_offsets)
        self._shipper = Shipper(
            folder,
            self._server,
            launch.attempt,
            launch.rank,
            on_stop=self._stop_from_server,
            on_events=self._checkpoints.poll,
            asked_to_end=self._asked_to_end,
            output=self._output,
            reports=self._reports,
            on_limited=self._tell_of_limited_reports,
            resume=is_adoption,
        )
        self._supervisor: Supervisor | None = None
        self._server_stop: StopOrder | None = None
        self._exit_lock = threading.Lock()

    def live(self) -> None:
        """Until the server has everything."""
        with ExitStack() as in_use:
            ended = self._clear_up() if self._is_adoption else self._work(in_use)
        self._report(ended)

    # -- from preparing to the exit
    # ------------------------------------------------------------------------------------

    def _work(self, in_use: ExitStack) -> Exit:
        try:
            signal.signal(signal.SIGTERM, self._interrupt_preparing)
            self._write(self._state)
            order = self._folder.read_stop()
            if order is not None:
                raise StopRequested(order)
            return self._run_or_say_why_not(in_use)
        except StopRequested as stopped:
            return Exit(stopped.order.kind, 128 + signal.SIGTERM, stopped.order.reason)

    def _run_or_say_why_not(self, in_use: ExitStack) -> Exit:
        try:
            return self._run(in_use)
        except PrepareFailed as failed:
            return failed.exit
        except OSError as failed:
            if self._state.phase is ReplicaPhase.RUNNING:
                return self._end_unsupervised(failed)
            return failure_of(failed, "the run could not be started").exit
        finally:
            self._wakeup.listen()

    def _run(self, in_use: ExitStack) -> Exit:
        spec, folder = self._spec, self._folder
        preparation = Preparation(folder, spec, self._server, in_use, self._say_preparing)
        prepared = preparation.run()
        env = variables(
            spec,
            folder,
            url=self._server.url,
            interpreter=prepared.interpreter.path,
            datasets=prepared.datasets,
            restored=prepared.restored,
            virtual_env=prepared.interpreter.virtual_env,
        )
        if spec.launch.rank == 0:
            self._tell_machine_env()
        argv = list(spec.launch.command)
        if argv[0] in ("python", "python3"):
            argv[0] = prepared.interpreter.path
        self._before = stamps(folder.work)
        groups = Groups.make(spec.node, spec.launch.resources)
        process.become_subreaper()
        self._wakeup.listen()
        try:
            started = process.start(
                process.Command(
                    argv,
                    env,
                    folder.work,
                    folder.streams / "stdout",
                    folder.streams / "stderr",
                    spec.node.cpus,
                    tuple(dict.fromkeys(groups.folders.values())),
                    self._umask,
                    view_of_home(spec, folder),
                    self._namespace,
                )
            )
        except PrepareFailed:
            groups.remove()
            raise
        self._state = replace(  # first: from here on no failure is one to start the script
            self._state,
            phase=ReplicaPhase.RUNNING,
            detail="",
            child_pid=started.pid,
            child_started=started_ticks(started.pid),
            started_at=time.time(),
        )
        groups.give_up(started.refused)
        self._write(self._state)
        self._shipper.say(self._status(ReplicaPhase.RUNNING))
        self._shipper.start()
        return self._supervise(started.pid, groups)

    def _end_unsupervised(self, failed: OSError) -> Exit:
        """The script runs, and its replica cannot follow it any more: how it would end is not known."""
        end_leftovers(self._folder, self._spec, self._state)
        where = f" ({failed.filename})" if failed.filename else ""
        return Exit(
            ExitKind.LOST,
            1,
            f"lost: its replica failed on node {self._spec.node.id}: {failed.strerror or failed}{where}",
        )

    def _supervise(self, pid: int, groups: Groups) -> Exit:
        spec, now = self._spec, time.monotonic()
        system = SystemMetrics(self._folder, groups, spec.node.gpus)
        tensorboard = TensorBoard(self._folder, spec.launch.env.get("TENSORBOARD_LOGDIR"))
        memory = MemoryWatch(spec.launch.resources.memory_bytes, groups)
        self._supervisor = Supervisor(
            self._folder,
            pid,
            groups,
            memory,
            self._wakeup,
            time_limit_s=spec.launch.time_limit_s,
            grace_s=spec.node.grace_s,
            gang_folder=Path(spec.node.gang_folder or self._folder.root),
            warn=self._warn_of_limit,
            periodic=[
                Periodic(now + FIRST_S, system.sample),
                Periodic(now + boards.EVERY_S, tensorboard.poll),
                *self._gpu_watch(now),
            ],
        )
        # after it can be found: the order may come at any moment
        self._supervisor.server_stop = self._server_stop
        ended = self._supervisor.run()
        try:
            tensorboard.poll()
        except (OSError, ValueError) as failed:
            say(f"tensorboard: {failed}")
        if spec.launch.study is not None and ended.kind is ExitKind.SIGNAL:
            # a study knows where it was: the next attempt goes on from there
            return replace(ended, kind=ExitKind.LOST)
        if spec.launch.study is not None and ended.kind is ExitKind.EXIT_CODE and ended.code == GOES_ON:
            return replace(ended, kind=ExitKind.LOST, reason=ended.reason.partition(": ")[2] or ended.reason)
        return ended

    def _warn_of_limit(self, text: str) -> None:
        """Where people look: in the run's events, and for those who follow it in its output."""
        if self._spec.launch.rank == 0:
            with suppress(OSError):
                self._folder.append_json("events", kind=RunEventKind.TIME_LIMIT, text=text)
                self._folder.append("stderr", f"hopyard: {text}\n".encode())

    def _gpu_watch(self, now: float) -> list[Periodic]:
        """Looks whether a run that shares a GPU keeps to its part."""
        node = self._spec.node
        if not node.gpu_memory_bytes or not node.nvml:
            return []
        watch = GpuMemoryWatch(node.gpu_memory_bytes, node.gpus)

        def look() -> float:
            reason = watch.check()
            if reason is not None and self._supervisor is not None:
                self._supervisor.end_for_memory(reason, time.monotonic())
            return EVERY_S

        return [Periodic(now + EVERY_S, look)]

    # -- the end
    # -------------------------------------------------------------------------------------------------------

    def _clear_up(self) -> Exit:
        """The work of an adoption: end what the dead replica left, and find out how it ended."""
        self._wakeup.listen()
        state = self._adopted
        # first: with our lock, the dead one's number would be taken for that of a living replica
        if state is not None:
            self._state = replace(state, pid=os.getpid())
            self._write(self._state)
        end_leftovers(self._folder, self._spec, state)
        if state is not None and state.exit is not None:
            return state.exit
        self._folder.create()
        died = f"its replica died on node {self._spec.node.id}"
        order = self._folder.read_stop()
        # a frozen one, say, which was killed when its grace was over
        if order is not None and order.kind is ExitKind.PREEMPTED:
            return Exit(ExitKind.PREEMPTED, 137, f"{order.reason}: {died} before it had saved and left")
        return Exit(ExitKind.LOST, 1, f"lost: {died}")

    def _report(self, ended: Exit) -> None:
        """Streams, checkpoints, outputs, then the exit: so the news of the end comes after all that led to
        it."""
        ended_at = self._state.ended_at or time.time()
        self._state = replace(
            self._state, phase=ReplicaPhase.EXITED, detail="", exit=ended, shipped=False, ended_at=ended_at
        )
        if not self._write(self._state):
            threading.Thread(target=self._write_again, args=(self._state,), name="exit", daemon=True).start()
        if self._state.child_pid:  # else no script ran
            self._shipper.say(self._status(ReplicaPhase.RUNNING, "sending the rest of its output"))
        self._checkpoints.finish()
        self._send_outputs()
        self._tell_of_dropped_output()
        self._left_behind.tell()
        self._tell_of_loss(ended)
        self._shipper.close(self._status(ReplicaPhase.EXITED, exit=ended))
        with self._exit_lock:
            self._state = replace(self._state, shipped=True)
        while self._folder.is_there() and not self._write(self._state):
            time.sleep(RETRY_S)

    def _status(self, phase: ReplicaPhase, detail: str = "", exit: Exit | None = None) -> ReplicaStatus:
        return ReplicaStatus(self._spec.launch.rank, phase, detail, exit, *self._state.times())

    def _write_again(self, state: ReplicaState) -> None:
        """How the script ended, until it is written down: a replica that dies before all is sent must not
        make it run again."""
        while self._folder.is_there():
            time.sleep(RETRY_S)
            with self._exit_lock:
                if self._state is not state or self._write(state):
                    return

    def _asked_to_end(self) -> bool:
        """Whether it is to end for good: a checkpoint that is asked for first is waited for."""
        order = self._folder.read_stop() or self._server_stop
        return order is not None and not order.wants_checkpoint

    def _send_outputs(self) -> None:
        """What a run made or changed in its folder. A failure of this is told, and fails nothing.
        A server without space is waited for, unless somebody wants the run to end."""
        if self._state.child_pid == 0:
            return
        launch, patience = self._spec.launch, Patience()
        while True:
            try:
                found = storable(self._folder.work, self._outputs())
                if found.files or found.links:
                    client = self._server.client
                    tree = push_files(client, self._folder.root, self._folder.work, found.files, found.links)
                    client.post(f"/attempts/{launch.attempt}/artifact", {"manifest": tree.digest})
                self._keep_unstored(found.unstored)
                return
            except (HopyardError, OSError) as failed:
                if not _is_own_folder(self._folder.work) and self._folder.is_there():
                    self._left_behind.add(
                        "what the run made in its folder is not stored: the folder is gone, or a link "
                        "is in its place"
                    )
                    self._left_behind.tell()
                    return
                if isinstance(failed, AGAIN) or is_passing(failed):
                    say(f"the run's files wait: {failed}")
                    if not self._folder.is_there():
                        return
                    if patience.is_over(failed, unwanted=self._asked_to_end()):
                        self._forgo_outputs(failed)
                        return
                    if not self._server.look_again():
                        time.sleep(RETRY_S)
                elif isinstance(failed, Conflict):
                    return  # a later attempt makes its own
                else:
                    self._forgo_outputs(failed)
                    return

    def _forgo_outputs(self, why: Exception) -> None:
        self._left_behind.keep("what the run made in its folder", self._folder.work, why)

    def _keep_unstored(self, unstored: Mapping[str, Obstacle]) -> None:
        """Files that no tree can hold stay on the node, and the run says where."""
        for obstacle in Obstacle:
            paths = [path for path, why in unstored.items() if why is obstacle]
            if not paths:
                continue
            folder, files = (
                None,
                [path for path in paths if obstacle in KEPT and (self._folder.work / path).is_file()],
            )
            if files:
                with suppress(OSError):
                    folder = stage_files(self._folder.root, self._folder.work, {path: path for path in files})
            if folder is None:
                self._left_behind.add(f"{sentence_of(paths)} could not be stored: {obstacle}")
            else:
                self._left_behind.keep(sentence_of(paths), folder, obstacle)

    def _outputs(self) -> Outputs:
        """Files of the run's folder that are new, or not as they are in its code."""
        work, code = self._folder.work, self._spec.launch.code
        found = written(work, self._before)
        if not (found.files or found.links or found.unstored) or code is None:
            return found
        try:
            with tree_cache(self._spec, self._folder).use(code, self._server.client.fetch) as tree:
                return found.unlike(work, tree)
        except (BlobsElsewhere, IntegrityError, MissingBlobs, NotFound) as failed:
            say(f"all files that were written to are sent, as the run's code cannot be had: {failed}")
            return found

    def _tell_machine_env(self) -> None:
        """What the run's processes get of the machine's variables is recorded with the run.
        On a full disk it goes unrecorded."""
        passed = self._spec.node.pass_environment
        with suppress(OSError):
            self._folder.append_json(
                "events", kind="environment", values=as_told(for_runs(os.environ, passed), passed)
            )

    def _tell_of_dropped_output(self) -> None:
        for name in OUTPUT_STREAMS:
            with suppress(OSError):
                with os.fdopen(open_plain(self._folder.streams / name, os.O_RDONLY), "rb") as file:
                    dropped = self._output.dropped_bytes(name, file.fileno(), os.fstat(file.fileno()).st_size)
                if dropped:
                    self._left_behind.add(self._output.sentence(name, self._spec.launch.rank, dropped))

    def _tell_of_limited_reports(self, name: str) -> None:
        self._left_behind.add(self._reports.sentence(name, self._spec.launch.rank))
        self._left_behind.tell()

    def _server_offsets(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Where in the server's streams is what the script saw at these offsets of the files."""
        found = {name: self._reports.server_offset(name, offset) for name, offset in offsets.items()}
        for name in OUTPUT_STREAMS:
            if name in found:
                with (
                    suppress(OSError),
                    os.fdopen(open_plain(self._folder.streams / name, os.O_RDONLY), "rb") as file,
                ):
                    found[name] = self._output.server_offset(name, file.fileno(), found[name])
        return found

    def _tell_of_loss(self, ended: Exit) -> None:
        """The run goes on without a replica that is not essential, so nobody reads why in the run's own
        end."""
        launch = self._spec.launch
        if (
            not launch.essential
            and not ended.ok
            and ended.kind not in (ExitKind.STOPPED, ExitKind.PREEMPTED, ExitKind.PEER_FAILED)
        ):
            self._folder.note(
                f"{launch.role} {launch.role_rank} (replica {launch.rank}) is gone: {ended.reason}"
            )

    # -- small things
    # ----------------------------------------------------------------------------------------------------

    def _say_preparing(self, detail: str) -> None:
        """Preparing takes a while: from now on the server hears of it."""
        if self._state.detail != detail:
            self._state = replace(self._state, detail=detail)
            self._write(self._state)
            self._shipper.say(ReplicaStatus(self._spec.launch.rank, ReplicaPhase.PREPARING, detail))
            self._shipper.start()

    def _interrupt_preparing(self, *_: object) -> None:
        self._wakeup.listen()  # once is enough: a second signal must not interrupt what the first one began
        raise StopRequested(self._folder.read_stop() or StopOrder(0.0))

    def _stop_from_server(self, word: StopWord) -> None:
        """In the shipper's thread: the server wants this attempt to end.
        Said where an engine would say it: a script looks there."""
        grace_s = self._spec.node.grace_s if word.grace_s is None else word.grace_s
        self._server_stop = StopOrder.preempt(grace_s) if word.preempt else StopOrder(grace_s)
        with suppress(OSError):  # a full disk: it ends all the same
            self._folder.request_stop(self._server_stop)
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.server_stop = self._server_stop
            self._wakeup.ring()
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts preparing

    def _write(self, state: ReplicaState) -> bool:
        """Whether it could be written. A full disk must not end the run that could still free it, and a
        folder that somebody removed is not made anew."""
        if not self._folder.is_there():
            return False
        try:
            self._folder.write_state(state)
        except OSError as failed:
            say(f"status not written: {failed}")
            return False
        return True
