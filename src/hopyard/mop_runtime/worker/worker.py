"""A worker: it receives the driver's messages and runs units."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import WorkerId
from hopyard.errors import ServerUnavailable, SpecError
from hopyard.mop_runtime.messages import (
    Acknowledge,
    Cancel,
    DigestComputed,
    DropStates,
    EvaluateUnit,
    FromWorker,
    Heartbeat,
    Hello,
    MeasureState,
    OpenPartitions,
    PrefetchState,
    Ready,
    SendStateToDriver,
    Shutdown,
    TrainUnit,
    UnitProgress,
    from_head,
    to_head,
)
from hopyard.mop_runtime.state_transfer import StateServer, send_to_driver
from hopyard.mop_runtime.transport.driver_connection import DriverConnection
from hopyard.mop_runtime.transport.framing import (
    ConnectionBroken,
    FramedConnection,
    join_address,
    split_address,
)
from hopyard.mop_runtime.transport.listener import ConnectionListener
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.allreduce_group import GroupRendezvous
from hopyard.mop_runtime.worker.inbox import Inbox, UnitCommand
from hopyard.mop_runtime.worker.open_partitions import OpenDataset, OpenPartitionSet
from hopyard.mop_runtime.worker.prefetch import BackgroundThread, DigestQueue, Prefetcher
from hopyard.mop_runtime.worker.unit_executor import UnitExecutor
from hopyard.mop_runtime.worker.unit_failure import UnitCancelled, WorkerExit, make_failed
from hopyard.trainables.load import load
from hopyard.trainables.protocol import SupportsDataParallel, Trainable
from hopyard.trial_state.shared_memory_store import StateStore

log = logging.getLogger("hopyard.mop_runtime.worker")

_ACKNOWLEDGE_TIMEOUT_S = 5.0  # for the driver to acknowledge at the end
_PROGRESS_INTERVAL_S = 1.0


class Worker:
    """Receives the driver's messages and runs units. Its state is its open partitions, one unit, and its
    unacknowledged messages."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        store: StateStore,
        open_dataset: OpenDataset,
        worker: WorkerId,
        code_dir: Path,
        host: str,
        reconnect_timeout_s: float,
        *,
        untrusted: bool = False,
    ) -> None:
        self._id, self._store, self._code_dir, self._host = worker, store, code_dir, host
        self._address, self._secret = address, secret
        self._trainable: Trainable | None = None
        self._trainable_name = ""
        self._partitions = OpenPartitionSet(open_dataset)
        self._inbox = Inbox()
        self._rendezvous = GroupRendezvous()
        self._sending_states: set[str] = set()
        self._state_server = StateServer(store)
        self._fetch_thread, self._cleanup_thread, self._send_thread = (
            BackgroundThread("worker-fetch"),
            BackgroundThread("worker-tidy"),
            BackgroundThread("worker-lend"),
        )
        self._prefetcher = Prefetcher(store, secret, self._fetch_thread)
        self._listener = ConnectionListener(secret, self._serve, host=_listen_host(address))
        self._driver_connection = DriverConnection(
            address, secret, self, reconnect_timeout_s=reconnect_timeout_s
        )
        self._executor = UnitExecutor(
            store,
            self._prefetcher,
            self._cleanup_thread,
            self._rendezvous,
            secret,
            self._check_cancelled,
            self._report_progress,
            untrusted=untrusted,
        )
        self._digest_queue = DigestQueue(store, self._report_digest, self._executor.is_executing)
        self._seen_trials: set[str] = set()
        self._executed_kinds: set[type[UnitCommand]] = set()
        self._last_progress = 0.0
        self._loss_reason = ""

    def run(self) -> str:
        """Runs until the shutdown; returns its reason."""
        self._driver_connection.start()
        while True:
            command = self._inbox.next()
            match command:
                case Shutdown():
                    if self._loss_reason:
                        raise ServerUnavailable(self._loss_reason)
                    self._driver_connection.wait_until_acknowledged(_ACKNOWLEDGE_TIMEOUT_S)
                    return command.reason
                case OpenPartitions():
                    self._open_partitions(command)
                case TrainUnit() | EvaluateUnit() | MeasureState():
                    self._execute(command)

    def close(self) -> None:
        self._driver_connection.close()
        self._listener.close()
        for thread in (self._fetch_thread, self._cleanup_thread, self._send_thread, self._digest_queue):
            thread.close()

    # -- opening ---------------------------------------------------------------------------------------------

    def _open_partitions(self, command: OpenPartitions) -> None:
        started_at = time.monotonic()
        try:
            process_setup.apply_determinism(command.deterministic, command.threads)
            if command.trainable != self._trainable_name:
                self._trainable = load(command.trainable, self._code_dir)
                self._trainable_name = command.trainable
                process_setup.apply_determinism(command.deterministic, command.threads)
                process_setup.freeze_imported_objects()
            self._partitions.set_partitions(command.plan, command.train, command.validation)
        except (Exception, SystemExit) as error:
            log.warning("partitions could not be opened: %s", error)
            self._send(make_failed("", error, self._code_dir, kind="open", open_id=command.open_id))
            return
        train, validation = self._partitions.indices("train"), self._partitions.indices("validation")
        rows = (
            self._partitions.row_counts("train", train),
            self._partitions.row_counts("validation", validation),
        )
        supports_data_parallel = isinstance(self._trainable, SupportsDataParallel)
        self._send(
            Ready(
                train,
                validation,
                *rows,
                seconds=time.monotonic() - started_at,
                supports_data_parallel=supports_data_parallel,
                open_id=command.open_id,
            )
        )

    # -- units -----------------------------------------------------------------------------------------------

    def _execute(self, command: UnitCommand) -> None:
        """Runs a unit. An error in the user's code does not end the worker."""
        if command.trial not in self._seen_trials:
            self._seen_trials.add(command.trial)
            log.info("trial %s for the first time: %s", command.trial, dict(command.params))
        try:
            if self._trainable is None:
                raise SpecError("the worker received a unit before the study's code and config")
            if isinstance(command, TrainUnit):
                result = self._executor.train(self._trainable, command, self._id, self._partitions)
                compute_digest = self._digest_queue.pin_state(command.unit, result.state)
                self._send(result, key=("news", command.unit))
                compute_digest()
            else:
                evaluated = (
                    self._executor.measure(self._trainable, command)
                    if isinstance(command, MeasureState)
                    else self._executor.evaluate(self._trainable, command, self._partitions)
                )
                self._send(evaluated, key=("news", command.unit))
        except WorkerExit:
            raise
        except UnitCancelled:
            log.info("unit %s was cancelled", command.unit)
        except (Exception, SystemExit) as error:
            self._report_failure(command.unit, error)
        finally:
            self._rendezvous.end_unit(command.unit)
        # libraries import some modules only at their first use
        if type(command) not in self._executed_kinds:
            self._executed_kinds.add(type(command))
            process_setup.freeze_imported_objects()

    def _report_failure(self, unit: str, exception: BaseException) -> None:
        if self._inbox.is_cancelled:
            return  # most likely caused by the cancellation, and ignored in any case
        failure = make_failed(unit, exception, self._code_dir)
        log.warning("unit %s failed: %s", unit, failure.error)
        self._send(failure, key=("news", unit))
        if failure.kind == "memory":
            exception.__traceback__ = None  # its frames reference the large objects
            self._executor.free_memory()

    def _check_cancelled(self, unit: str) -> None:
        if self._inbox.is_cancelled:
            raise UnitCancelled(unit)

    def _report_progress(self, unit: str, seconds: float, completed_share: float) -> None:
        """Called repeatedly while a unit reads its partition."""
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_INTERVAL_S:
            self._last_progress = now
            self._send(UnitProgress(unit, seconds, completed_share))

    def _send(self, message: FromWorker, *, key: tuple[str, str] | None = None) -> None:
        self._driver_connection.send(to_head(message), key=key)

    def _report_digest(self, unit: str, state: str, digest: str) -> None:
        self._state_server.add_digest(state, digest)
        self._send(DigestComputed(unit, state, digest), key=("named", unit))

    # -- messages of the driver (on the connection's thread)
    # ---------------------------------------------------------

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        opening = self._inbox.last_open()
        hello = Hello(
            worker=self._id,
            pid=os.getpid(),
            host=socket.gethostname(),
            store_id=self._store.id,
            address=join_address(self._host or local_host, self._listener.port),
            train=self._partitions.indices("train") if opening is None else opening.train,
            validation=self._partitions.indices("validation") if opening is None else opening.validation,
            states=tuple(self._store.list_states()),
            units_in_progress=self._inbox.units_in_progress(),
            supports_data_parallel=self._trainable is None
            or isinstance(self._trainable, SupportsDataParallel),
            opening="" if opening is None else opening.open_id,
        )
        return to_head(hello)

    def make_heartbeat(self) -> Mapping[str, Any]:
        return to_head(Heartbeat(rss_bytes=_rss_bytes()))

    def on_message(self, head: Mapping[str, Any]) -> None:
        try:
            message = from_head(head)
        except SpecError as error:
            raise ConnectionBroken(f"the driver sent an invalid message: {error}") from error
        match message:
            case Shutdown(reason, immediate=True):
                process_setup.kill_process(reason)
            case OpenPartitions() | TrainUnit() | EvaluateUnit() | MeasureState() | Shutdown():
                self._inbox.put(message)
            case Cancel(unit):
                if self._inbox.cancel(unit):
                    self._rendezvous.end_unit(unit)
                    self._executor.leave_group()
                self._driver_connection.acknowledge([("news", unit), ("named", unit)])
            case PrefetchState(state, sources):
                self._prefetcher.prefetch(state, sources)
            case DropStates(states):
                self._prefetcher.discard(states)
                self._state_server.discard(states)
                self._cleanup_thread.submit(lambda: self._store.drop(states))
            case SendStateToDriver(state):
                if state not in self._sending_states:  # the driver repeats the request if it takes long
                    self._sending_states.add(state)
                    self._send_thread.submit(lambda: self._send_state(state))
            case Acknowledge(units, digest_units):
                self._driver_connection.acknowledge(
                    [*(("news", unit) for unit in units), *(("named", unit) for unit in digest_units)]
                )
            case _:
                log.warning("the driver sent `%s`, which is a worker's message", head.get("kind"))

    def _send_state(self, state: str) -> None:
        try:
            send_to_driver(state, self._address, self._secret, self._state_server)
        finally:
            self._sending_states.discard(state)

    def on_driver_lost(self, reason: str) -> None:
        self._loss_reason = reason
        self._inbox.put(Shutdown(reason))

    # -- requests of other workers (on threads of their connections)
    # -------------------------------------------

    def _serve(self, connection: FramedConnection) -> None:
        while True:
            head, size = connection.receive_head()
            match head:
                case {"kind": "fetch"} if not size:
                    self._state_server.send_state(connection, head)
                case {"kind": "join", "unit": str(unit), "index": int(index)} if not size:
                    self._rendezvous.wait_for_end(unit, index, connection)
                    return
                case _:
                    raise ConnectionBroken(f"{str(head.get('kind'))[:40]!r} is not served here")


def _listen_host(driver: str) -> str:
    """If the driver listens on this host only, no worker can be on another host."""
    host = split_address(driver)[0]
    return host if host in ("127.0.0.1", "localhost", "::1") else ""


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
