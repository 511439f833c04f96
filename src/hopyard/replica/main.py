"""The life cycle of one replica: prepare, launch, supervise, ship all output, report the exit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from hopyard.config.home import Home
from hopyard.config.units import format_bytes
from hopyard.datasets.output_files import scan_stamps
from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.launcher import Launcher
from hopyard.domain.replica import ReplicaSpec, ReplicaState, StopOrder, exit_after_replica_death
from hopyard.domain.run import RunEventKind
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.domain.study import CONTINUE_EXIT_CODE
from hopyard.errors import HopyardError
from hopyard.replica import user_process
from hopyard.replica.checkpoint_uploads import RETRY_INTERVAL_S, CheckpointUploader
from hopyard.replica.command_receiver import CommandReceiver
from hopyard.replica.console.child_exits import ChildExits
from hopyard.replica.console.console_acceptor import ConsoleAcceptor
from hopyard.replica.errors import PrepareFailed, StopRequested, prepare_error
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.gpu_memory import gpu_memory_checks
from hopyard.replica.hosts_file import mount_hosts_file
from hopyard.replica.launchers.launch_command import end_launch
from hopyard.replica.leftover_processes import (
    boot_id,
    kill_leftover_processes,
    process_start_ticks,
    remove_leftover_container,
)
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.orphan_killer import OrphanKiller
from hopyard.replica.output_metrics import append_missing_points
from hopyard.replica.output_recorder import OutputRecorder, dropped_output
from hopyard.replica.output_uploads import OutputUploader
from hopyard.replica.preflight import ReplicaPreflight
from hopyard.replica.prepare import RunPreparation, home_view
from hopyard.replica.process_command import process_command
from hopyard.replica.process_env import record_machine_env
from hopyard.replica.process_restarts import ProcessRestarts
from hopyard.replica.process_start import ProcessLauncher
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.resource_limits import MemoryLimit, ReplicaCgroups
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.script_checkpoints import ScriptCheckpoints
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.stream_shipper import StopRequest, StreamShipper
from hopyard.replica.supervisor import PeriodicAction, Supervisor, Wakeup
from hopyard.replica.system_metrics import FIRST_INTERVAL_S, SystemMetrics
from hopyard.replica.tensorboard_tail import TensorBoardTail, follow_event_files, read_positions
from hopyard.replica.unstored_folders import UnstoredFolders
from hopyard.replica.user_command import report_unread_params
from hopyard.replica.visdom_forward import open_visdom_forward
from hopyard.sdk.output_limit import OutputLimit
from hopyard.sdk.report_limit import ReportLimit


def run(folder: Path, *, adopt: bool, lock: int, umask: int, namespace: int | None = None) -> int:
    """Runs this replica, with its folder's lock held in descriptor `lock` until the end.

    umask: of the user's process. namespace: the user namespace of its gang's processes on this node. Returns
    the program's exit code.
    """
    replica_dir = ReplicaDir(folder)
    state = replica_dir.read_state()
    if state is not None and (state.shipped or not adopt):
        return 0
    try:
        spec = replica_dir.read_spec()
    except HopyardError as error:
        log(f"replica: {error}")
        return 1
    gang = GangFolder(Path(spec.node.gang_folder or folder), spec)
    # an earlier version gave each replica a folder of its own
    shared_work = None if adopt and (folder / "work").is_dir() else gang.shared_work
    replica = Replica(
        replace(replica_dir, shared_work=shared_work),
        spec,
        adopted=state if adopt else None,
        is_adoption=adopt,
        umask=umask,
        namespace=namespace,
    )
    orphan_killer = None if adopt else OrphanKiller(replica_dir, spec, lock)
    replica.run()
    if orphan_killer is not None:
        orphan_killer.dismiss()
    os.close(lock)
    return 0


# how long the rest of the event files is read after the script has ended
_FINAL_READ_S, _STOPPED_READ_S = 30.0, 2.0


class Replica:
    """One replica of one attempt. See `docs/internals/replica.md`."""

    def __init__(
        self,
        folder: ReplicaDir,
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
        self._server = ServerConnection(
            folder, url=launch.server_url, token=launch.token, home=Home(Path(spec.node.home))
        )
        self._preflight = ReplicaPreflight(spec, folder, self._server)
        self._wakeup = Wakeup()
        self._unstored = UnstoredFolders(folder, spec)
        self._output = OutputLimit(spec.node.max_output_bytes)
        self._reports = ReportLimit(spec.node.max_metrics_bytes, folder.root / "reports", log=log)
        self._recorder = OutputRecorder(folder, spec.node.max_output_bytes)
        self._checkpoints = CheckpointUploader(
            folder, spec, self._server, self._unstored, self._server_offsets
        )
        self._shipper = StreamShipper(
            folder,
            self._server,
            launch.attempt,
            launch.rank,
            on_stop=self._on_server_stop,
            commands=CommandReceiver(Path(spec.node.gang_folder or folder.root)),
            on_events=self._checkpoints.poll,
            before_read=self._recorder.record,
            is_stopping=self._is_stopping,
            output=self._output,
            reports=self._reports,
            on_limited=self._report_limited_metrics,
            resume=is_adoption,
        )
        self._tensorboard: TensorBoardTail | None = None  # once the script is about to start
        self._gang = GangFolder(Path(spec.node.gang_folder or folder.root), spec)
        has_own_work = folder.shared_work is None and spec.node.shares_folder
        self._run_folder = RunFolder(
            self._gang,
            None if has_own_work or launch.study is not None else folder.work,
            self._server,
            self._is_stopping,
            self._unstored.queue_message,
            lambda: self._outputs.find_changed().files,
            ScriptCheckpoints(launch, self._server, MetricHistory(folder)),
        )
        self._outputs = OutputUploader(
            folder, spec, self._server, self._unstored, self._is_stopping, has_own_work
        )
        self._supervisor: Supervisor | None = None
        self._server_stop: StopOrder | None = None
        self._exit_lock = threading.Lock()
        self._exits = ChildExits()
        self._consoles: ConsoleAcceptor | None = None  # of the user's process
        self._starter: ProcessLauncher | None = None

    def run(self) -> None:
        """Returns when the server has everything."""
        with ExitStack() as stack:
            exit = self._finish_adoption() if self._is_adoption else self._run_to_end(stack)
        end_launch(self._spec)
        self._report_exit(exit)

    # -- from preparing to the exit --------------------------------------------------------------------------

    def _run_to_end(self, stack: ExitStack) -> Exit:
        try:
            signal.signal(signal.SIGTERM, self._interrupt_preparing)
            self._write(self._state)
            stop_order = self._folder.read_stop()
            if stop_order is not None:
                self._wakeup.listen()  # the signal that follows the order must not interrupt its handling
                raise StopRequested(stop_order)
            return self._run_or_report_error(stack)
        except StopRequested as error:
            return Exit(error.order.kind, 128 + signal.SIGTERM, error.order.reason)

    def _run_or_report_error(self, stack: ExitStack) -> Exit:
        try:
            return self._prepare_and_run(stack)
        except PrepareFailed as error:
            return error.exit
        except OSError as error:
            if self._state.phase is ReplicaPhase.RUNNING:
                return self._kill_unsupervised(error)
            return prepare_error(error, "the run could not be started").exit
        finally:
            self._wakeup.listen()

    def _prepare_and_run(self, stack: ExitStack) -> Exit:
        spec, folder = self._spec, self._folder
        preparation = RunPreparation(
            folder, spec, self._server, stack, self._report_preparing, self._run_folder, self._preflight
        )
        prepared = preparation.run()
        launch = spec.launch
        visdom = open_visdom_forward(launch, self._server)
        build_command = partial(
            process_command,
            spec,
            folder,
            self._run_folder,
            prepared,
            url=self._server.url,
            visdom="" if visdom is None else visdom.address,
        )
        argv, env = build_command(restored=prepared.restored)
        if launch.rank == 0:
            record_machine_env(folder, spec.node.pass_environment)
        self._starter = ProcessLauncher.open(spec, self._gang, prepared, self._report_preparing)
        view = home_view(spec, folder)
        if view is not None:
            view = replace(
                view,
                mounts={**prepared.mounts, **mount_hosts_file(spec, folder.root)},
                # MPI takes daemons with one host name for the same node
                host_name=launch.host_name if launch.launcher is Launcher.MPI else "",
            )
        if folder.shared_work is None or spec.node.is_first:
            places, has_view = self._gang.continued_places, view is not None
            logs = env.get("TENSORBOARD_LOGDIR")
            self._tensorboard = follow_event_files(folder, spec, places, logs, has_view=has_view)
        if folder.shared_work is None:
            restored = self._run_folder.restored_work_files  # they count as written by the run
            stamps = scan_stamps(folder.work)
            self._outputs.initial_stamps = {
                path: stamp for path, stamp in stamps.items() if path not in restored
            }
        user_process.become_subreaper()
        self._wakeup.listen()
        process = user_process.ProcessSpec(
            argv,
            env,
            self._gang.path_in_place(folder.work),
            folder.streams / "stdout",
            folder.streams / "stderr",
            spec.node.cpus,
            umask=self._umask,
            view=view,
            namespace=self._namespace,
            outer_cwd=folder.work,
        )
        cgroups = self._start_process(process)
        self._recorder.start()
        if visdom is not None:
            visdom.start()
        self._shipper.set_status(self._status(ReplicaPhase.RUNNING))
        self._shipper.start()
        if self._tensorboard is not None:
            self._tensorboard.start()
        if spec.node.is_first:
            self._run_folder.start()
        restarts = ProcessRestarts(
            folder,
            spec,
            self._server,
            stack,
            self._wakeup,
            self._find_stop,
            self._server_offsets,
            lambda detail: self._shipper.set_status(self._status(ReplicaPhase.RUNNING, detail)),
            launch.restore if prepared.restored else None,
            build_command if launch.resume_arguments else None,
            self._run_folder.complete_checkpoints,
        )
        return self._supervise_all(process, cgroups, restarts)

    def _start_process(self, process: user_process.ProcessSpec) -> ReplicaCgroups:
        """Starts the user's process in control groups of its own, and returns them. Raises PrepareFailed."""
        assert self._starter is not None
        started, cgroups = self._starter.start(process)
        self._state = replace(  # first: from here on a failure is not a failure to start the script
            self._state,
            phase=ReplicaPhase.RUNNING,
            detail="",
            child_pid=started.pid,
            container_pid=self._starter.container_pid,
            child_started=process_start_ticks(started.pid),
            started_at=self._state.started_at if self._state.child_pid else started.began_at,
            ended_at=0.0,
        )
        self._write(self._state)
        self._consoles = ConsoleAcceptor(
            self._folder.root, self._starter.console(process, started), self._exits
        )
        self._consoles.start()
        return cgroups

    def _supervise_all(
        self, process: user_process.ProcessSpec, cgroups: ReplicaCgroups, restarts: ProcessRestarts
    ) -> Exit:
        """Supervises the process, and those that follow it by the restart policy. Returns the last exit."""
        assert self._starter is not None
        started_at, begins = time.monotonic(), dict[str, int]()
        try:
            while True:
                exit = self._supervise(self._state.child_pid, cgroups, started_at, begins)
                last = restarts.last_exit(exit)
                if last is not None:
                    return last
                self._starter.end()
                words, env = restarts.prepare(exit, process.argv, process.env)
                process = replace(process, argv=words, env=env)
                begins = restarts.output_begins()
                cgroups = self._start_process(process)
                self._shipper.set_status(self._status(ReplicaPhase.RUNNING))
        finally:
            self._recorder.close()

    def _find_stop(self) -> StopOrder | None:
        """Returns the order to stop, if there is one."""
        if not self._folder.exists():
            return StopOrder(0.0, ExitKind.LOST, "lost: the folder of its replica was removed")
        return self._folder.read_stop() or self._server_stop

    def _kill_unsupervised(self, error: OSError) -> Exit:
        """The script runs, but its replica cannot supervise it any more, so its exit would be unknown."""
        kill_leftover_processes(self._folder, self._spec, self._state)
        file_text = f" ({error.filename})" if error.filename else ""
        return exit_after_replica_death(
            self._folder.read_stop(),
            f"its replica failed on node {self._spec.node.id}: {error.strerror or error}{file_text}",
        )

    def _supervise(
        self, pid: int, groups: ReplicaCgroups, limit_began_at: float, output_begins: Mapping[str, int]
    ) -> Exit:
        assert self._consoles is not None
        spec, now = self._spec, time.monotonic()
        system = SystemMetrics(self._folder, groups, spec.node.gpus)
        memory = MemoryLimit(spec.launch.resources.memory_bytes, groups)
        self._supervisor = Supervisor(
            self._folder,
            pid,
            groups,
            memory,
            self._wakeup,
            time_limit_s=spec.launch.time_limit_s,
            grace_s=spec.node.grace_s,
            gang_folder=Path(spec.node.gang_folder or self._folder.root),
            report_limit=self._report_time_limit,
            request_sync=self._shipper.wake,
            output_begins=output_begins,
            limit_began_at=limit_began_at,
            on_reaped=self._exits.record,
            on_end=self._consoles.close,
            periodic=[
                PeriodicAction(now + FIRST_INTERVAL_S, system.write_sample),
                *gpu_memory_checks(spec.node, self._kill_for_memory, now),
            ],
        )
        # after the supervisor is published: a stop order may arrive at any moment
        self._supervisor.server_stop = self._server_stop
        exit = self._supervisor.run()
        self._state = replace(self._state, ended_at=self._supervisor.ended_at)
        if spec.launch.study is not None and exit.kind is ExitKind.SIGNAL:
            # a study stores its position: the next attempt resumes from it
            return replace(exit, kind=ExitKind.LOST)
        if (
            spec.launch.study is not None
            and exit.kind is ExitKind.EXIT_CODE
            and exit.code == CONTINUE_EXIT_CODE
        ):
            return replace(exit, kind=ExitKind.LOST, reason=exit.reason.partition(": ")[2] or exit.reason)
        return exit

    def _report_time_limit(self, text: str) -> None:
        """Writes the text to the run's events and to its stderr."""
        if self._spec.launch.rank == 0:
            with suppress(OSError):
                self._folder.append_json("events", kind=RunEventKind.TIME_LIMIT, text=text)
                self._folder.append("stderr", f"hopyard: {text}\n".encode())

    def _kill_for_memory(self, reason: str) -> None:
        if self._supervisor is not None:
            self._supervisor.kill_for_memory(reason, time.monotonic())

    # -- the end ---------------------------------------------------------------------------------------------

    def _finish_adoption(self) -> Exit:
        """Ends the processes that the dead replica left, and determines how it ended."""
        self._wakeup.listen()
        state = self._adopted
        # first: since we hold the lock, the dead replica's pid would be taken for that of a live one
        if state is not None:
            self._state = replace(state, pid=os.getpid())
            self._write(self._state)
        kill_leftover_processes(self._folder, self._spec, state)
        self._read_printed_metrics(ended=state is not None and state.exit is not None)
        self._resume_tensorboard()
        if state is not None and state.exit is not None:
            return state.exit
        self._folder.create()
        # an order: for example a frozen replica was killed when its grace period was over
        return exit_after_replica_death(
            self._folder.read_stop(), f"its replica died on node {self._spec.node.id}"
        )

    def _read_printed_metrics(self, *, ended: bool) -> None:
        """Reads the metrics of lines that the dead replica had not read."""
        templates = self._spec.launch.metric_lines
        if templates and (self._folder.shared_work is None or self._spec.node.is_first):
            try:
                append_missing_points(self._folder, templates, ended=ended)
            except OSError as error:
                self._unstored.queue_message(f"metrics of printed lines were not read: {error.strerror}")

    def _resume_tensorboard(self) -> None:
        """Reads the points of event files that the dead replica had not read."""
        positions = read_positions(self._folder)
        if positions is None:
            return
        try:
            self._tensorboard = follow_event_files(
                self._folder,
                self._spec,
                self._gang.continued_places,
                has_view=self._spec.node.namespaces,
                resume=positions,
            )
            self._tensorboard.start()
        except OSError as error:
            self._unstored.queue_message(f"event files were not read: {error.strerror}")

    def _report_exit(self, exit: Exit) -> None:
        """Sends streams, checkpoints and outputs, then the exit. The exit is therefore the last message."""
        ended_at = self._state.ended_at or time.time()
        self._state = replace(
            self._state, phase=ReplicaPhase.EXITED, detail="", exit=exit, shipped=False, ended_at=ended_at
        )
        if not self._write(self._state):
            threading.Thread(
                target=self._write_state_with_retry, args=(self._state,), name="exit", daemon=True
            ).start()
        # the exit is written first: a container engine that hangs delays the removal of a container
        if self._is_adoption:
            remove_leftover_container(self._spec)
        elif self._starter is not None:
            self._starter.end()
        if self._state.child_pid:  # otherwise no script ran
            self._shipper.set_status(self._status(ReplicaPhase.RUNNING, "sending the rest of its output"))
        self._finish_tensorboard()
        if self._state.child_pid and not self._is_adoption:
            report_unread_params(self._spec.launch, self._folder, exit)
        self._checkpoints.finish()
        self._upload_folders(exit)
        for sentence in dropped_output(self._folder, self._output, self._spec.launch.rank):
            self._unstored.queue_message(sentence)
        self._unstored.report_pending()
        self._report_lost_replica(exit)
        self._shipper.close(self._status(ReplicaPhase.EXITED, exit=exit))
        with self._exit_lock:
            self._state = replace(self._state, shipped=True)
        while self._folder.exists() and not self._write(self._state):
            time.sleep(RETRY_INTERVAL_S)

    def _status(self, phase: ReplicaPhase, detail: str = "", exit: Exit | None = None) -> ReplicaStatus:
        return ReplicaStatus(self._spec.launch.rank, phase, detail, exit, *self._state.start_and_end())

    def _write_state_with_retry(self, state: ReplicaState) -> None:
        """Retries until the exit is written to disk. A replica that dies before everything is sent must not
        cause the script to run again."""
        while self._folder.exists():
            time.sleep(RETRY_INTERVAL_S)
            with self._exit_lock:
                if self._state is not state or self._write(state):
                    return

    def _is_stopping(self) -> bool:
        """Returns whether the replica must end for good. A stop that requests a checkpoint first is waited
        for."""
        order = self._folder.read_stop() or self._server_stop
        return order is not None and not order.requests_checkpoint

    def _finish_tensorboard(self) -> None:
        """Reads the rest of the event files: not all of it if it takes long, or the run must end."""
        if self._tensorboard is None:
            return
        unread = self._tensorboard.finish(_STOPPED_READ_S if self._is_stopping() else _FINAL_READ_S)
        if unread:
            self._unstored.queue_message(
                f"tensorboard of replica {self._spec.launch.rank}: {format_bytes(unread)} of event files "
                "were not read when the run ended"
            )
        elif sentence := self._tensorboard.unsupported_sentence():
            with suppress(OSError):  # on a full disk it is not written
                self._folder.append_json("events", kind=RunEventKind.MEDIA, text=sentence)
        if sentence := self._tensorboard.dropped_sentence():
            self._unstored.queue_message(sentence)

    def _upload_folders(self, exit: Exit) -> None:
        """Stores the run folder and the outputs. What replicas share, the last one on the node stores."""
        self._run_folder.stop()
        is_last = self._gang.mark_ended()
        # half of a restored run folder must not replace the stored one
        if is_last and self._gang.is_ready and self._gang.run.is_dir():
            if self._is_adoption or not self._spec.node.is_first:  # another process has stored files
                self._run_folder.load_record()
            ended_at = self._state.ended_at or self._folder.last_write_at()
            is_killed = exit.code > 128 or exit.kind is ExitKind.LOST
            problem = self._run_folder.finish(
                is_failed=not exit.is_success, killed_at=ended_at if is_killed else None
            )
            if problem:
                self._unstored.queue_message(f"the run folder could not be stored: {problem}")
        if self._state.child_pid and (is_last or self._folder.shared_work is None):
            self._outputs.upload()

    def _report_limited_metrics(self, name: str) -> None:
        self._unstored.queue_message(self._reports.explain(name, self._spec.launch.rank))
        self._unstored.report_pending()

    def _server_offsets(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Maps offsets in the script's files to offsets in the server's streams."""
        server_offsets = {name: self._reports.server_offset(name, offset) for name, offset in offsets.items()}
        for name in OUTPUT_STREAMS:
            if name in server_offsets:
                with (
                    suppress(OSError),
                    os.fdopen(self._folder.open_stream(name), "rb") as file,
                ):
                    server_offsets[name] = self._output.server_offset(
                        name, file.fileno(), server_offsets[name]
                    )
        return server_offsets

    def _report_lost_replica(self, exit: Exit) -> None:
        """Records why a replica that is not essential ended. The run continues, so its own exit does not
        contain the reason."""
        launch = self._spec.launch
        if (
            not launch.essential
            and not exit.is_success
            and exit.kind not in (ExitKind.STOPPED, ExitKind.PREEMPTED, ExitKind.PEER_FAILED)
        ):
            self._folder.record_note(
                f"{launch.role} {launch.role_rank} (replica {launch.rank}) is lost: {exit.reason}"
            )

    # -- status and signals ----------------------------------------------------------------------------------

    def _report_preparing(self, detail: str) -> None:
        """Publishes the state of a slow preparation: from now on the server is notified of it."""
        if self._state.detail != detail:
            self._state = replace(self._state, detail=detail)
            self._write(self._state)
            self._shipper.set_status(ReplicaStatus(self._spec.launch.rank, ReplicaPhase.PREPARING, detail))
            self._shipper.start()

    def _interrupt_preparing(self, *_: object) -> None:
        self._preflight.raise_if_failed()
        self._wakeup.listen()  # a second signal must not interrupt the handling of the first
        raise StopRequested(self._folder.read_stop() or StopOrder(0.0))

    def _on_server_stop(self, request: StopRequest) -> None:
        """Runs in the shipper's thread: the server requests the end of this attempt. Writes the stop order as
        an engine would, because scripts look for the file."""
        grace_s = self._spec.node.grace_s if request.grace_s is None else request.grace_s
        self._server_stop = StopOrder.for_request(grace_s, request.signal, preempt=request.preempt)
        with suppress(OSError):  # on a full disk it ends without the file
            self._folder.request_stop(self._server_stop)
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.server_stop = self._server_stop
            self._wakeup.notify()
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts preparing

    def _write(self, state: ReplicaState) -> bool:
        """Returns whether the state was written. A full disk must not end a run that could still free space,
        and a folder that was removed is not created again."""
        if not self._folder.exists():
            return False
        try:
            self._folder.write_state(state)
        except OSError as error:
            log(f"status not written: {error}")
            return False
        return True
