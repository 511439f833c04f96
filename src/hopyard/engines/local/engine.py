"""The engine of one machine: gangs as process trees. Each replica is supervised by its own replica program.

All state is in the replicas' folders. This object's own state (ports, cores, failed adoptions) is rebuilt, or
harmless to lose.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.gang import Assignment
from hopyard.domain.ids import AttemptId, split_attempt
from hopyard.domain.launch import Launch
from hopyard.domain.replica import (
    TRUSTED_SPEC_PREFIX,
    NodeContext,
    ReplicaState,
    StopOrder,
    exit_after_replica_death,
    stop_order_for_peers,
)
from hopyard.domain.run_environment import replica_variables
from hopyard.engines.local.attempt_share import (
    AttemptShare,
    assign_rendezvous_ports,
    read_shares,
    used_ports,
)
from hopyard.engines.local.cached_keys import CachedKeys
from hopyard.engines.local.cgroups import find_cgroups, remove_groups
from hopyard.engines.local.console_connections import connect_console
from hopyard.engines.local.container_cleanup import ContainerCleanup
from hopyard.engines.local.node_detection import LocalNodeSettings, find_nodes
from hopyard.engines.local.node_health import HealthChecks, NodeHealth
from hopyard.engines.local.node_ranks import node_ranks
from hopyard.engines.local.port_connections import PortConnector, PortStream
from hopyard.engines.local.ports import PortClaims
from hopyard.engines.local.replica_folder import (
    ReplicaFolder,
    is_frozen,
    process_state,
    remove_stale_spec,
    remove_trusted_specs,
    replica_folders,
)
from hopyard.engines.local.replica_specs import ReplicaSpecs
from hopyard.engines.local.spawner import SpawnerClient
from hopyard.errors import HopyardError, LaunchFailed, is_disk_full
from hopyard.private_files import remove_tree

ADOPT_INTERVAL_S = 2.0  # between two adoptions of one folder
MAX_ADOPTIONS = 5  # failed ones, before a replica counts as lost
FROZEN_TIMEOUT_S = (
    5.0  # after the grace period of an order: a healthy replica needs less than a second to kill its script
)
log = logging.getLogger("hopyard.engines")
# between two kills of a replica that sends what its ended script left: of a large checkpoint each adoption
# sends the rest, and after `MAX_ADOPTIONS` of them it would be lost
SENDING_TIMEOUT_S = 600.0
EXIT_TIMEOUT_S = 30.0  # for a replica that has reported that everything is sent
_REMOVED_PREFIX = ".gone-"  # prefix of a folder that is being removed


class EnginePaths(Protocol):
    """The part of `hopyard.config.home.Home` that the engine needs."""

    @property
    def root(self) -> Path: ...
    @property
    def attempts(self) -> Path: ...
    @property
    def run_places(self) -> Path: ...
    @property
    def server_file(self) -> Path: ...


@dataclass(slots=True)
class _Adoption:
    attempts: int = 0
    last_at: float = float("-inf")


class LocalEngine:
    """Implements `hopyard.interfaces.engine.Engine` for this machine (design page 0001, sections 1 and 4).

    home: the folders. nodes: the user's declarations of this machine, or of its parts. server_url: returns
    the server's current address; replicas get it in their spec. spawner_command: the argument vector of the
    spawner (`python -m hopyard.replica.spawner`), to which the number of a socket is appended.
    adopt_replicas: whether `observe` adopts dead replicas (a second engine on the same home must not).
    free_disk_space: releases a part of the reserved disk space of a folder's disk; returns False without any.
    use_cgroups: False enforces limits by polling only. grace: between SIGTERM and SIGKILL at a time limit.
    name: must differ between servers on one database. umask: of the scripts; None is this process's. checks:
    of this node's health.

    max_output_bytes: limit for each of stdout and stderr of a replica, 0 is no limit. max_metrics_bytes:
    limit for each stream of its reports. max_media_bytes: limit for its media. pass_environment: patterns of
    additional variables of this process that runs get. namespaces: whether runs get their own view of the
    home.
    """

    def __init__(
        self,
        home: EnginePaths,
        *,
        server_url: Callable[[], str],
        spawner_command: Sequence[str],
        nodes: Sequence[LocalNodeSettings] = (),
        adopt_replicas: bool = True,
        use_cgroups: bool = True,
        grace: timedelta = timedelta(seconds=10),
        name: str = "local",
        umask: int | None = None,
        checks: HealthChecks | None = None,
        pass_environment: Sequence[str] = (),
        max_output_bytes: int = 0,
        max_metrics_bytes: int = 0,
        max_media_bytes: int = 0,
        namespaces: bool = True,
        free_disk_space: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        self._home, self._server_url, self._grace, self.name = home, server_url, grace, name
        self._free_disk_space = free_disk_space
        found, self._nvml = find_nodes(nodes, engine=name)
        self._nodes = {node.id: node for node in found}
        self._health = NodeHealth(
            checks or HealthChecks(),
            home.root,
            home.attempts,
            [gpu.index for gpu in found[0].gpus] if self._nvml else [],
        )
        self._cached_keys = CachedKeys(home.root / "cache")
        self._spawner = SpawnerClient(
            spawner_command, env=replica_variables(os.environ, pass_environment), umask=umask
        )
        self._port_claims = PortClaims()
        self._specs = ReplicaSpecs(
            attempts=home.attempts,
            # the homes of a machine share one folder of cgroups
            tag=hashlib.blake2s(str(home.root).encode(), digest_size=4).hexdigest(),
            cgroups=find_cgroups() if use_cgroups else {},
            port_claims=self._port_claims,
            defaults=NodeContext(
                id="",
                home=str(home.root),
                server_file=str(home.server_file),
                master_port=0,
                grace_s=grace.total_seconds(),
                nvml=self._nvml,
                pass_environment=tuple(pass_environment),
                max_output_bytes=max_output_bytes,
                max_metrics_bytes=max_metrics_bytes,
                max_media_bytes=max_media_bytes,
                processes=nodes[0].processes if nodes else 0,
                namespaces=namespaces,
            ),
        )
        self._adopts_replicas = adopt_replicas
        self._adoptions: dict[Path, _Adoption] = {}
        self._shares: dict[AttemptId, AttemptShare] | None = None
        # one launch at a time: each is short, and the spawner is single-threaded
        self._lock = asyncio.Lock()
        self._launching: set[AttemptId] = set()
        self._launched: set[AttemptId] = set()
        self._stopping_tasks: dict[AttemptId, asyncio.Task[None]] = {}
        self._ports = PortConnector(home.attempts, home.root)
        self._containers = ContainerCleanup(
            home.root, lambda: {folder.name for folder in self._attempt_folders()}
        )
        self._gpu_suspects: set[Path] = set()  # replicas with faults for which the GPUs were checked
        self._stopped_since: dict[Path, float] = {}  # monotonic time since which a replica is frozen
        self._overdue_at: dict[AttemptId, float] = {}  # monotonic time
        self._sending_since: dict[Path, float] = {}  # monotonic time: of replicas with an overdue order

    @property
    def nodes(self) -> tuple[Node, ...]:
        """This machine, or its declared parts."""
        return tuple(self._nodes.values())

    def leftover_attempts(self) -> dict[AttemptId, bool]:
        """Returns the attempts of an earlier engine that are unfinished or not fully sent, and whether a
        replica of each is alive. It blocks."""
        attempts: dict[AttemptId, bool] = {}
        for attempt in self._attempt_folders():
            alive = {
                folder: folder.is_alive() for folder in replica_folders(attempt)
            }  # first: see `_observe_replica`
            states = [folder.read_state() for folder in alive]
            if any(alive.values()) or not all(state is not None and state.shipped for state in states):
                attempts[AttemptId(attempt.name)] = any(alive.values())
        return attempts

    async def start(self) -> None:
        """Starts the spawner in advance, so that the first launch is as fast as the others. Raises
        LaunchFailed."""
        await self._spawner.start()
        async with self._lock:
            await self._read_shares()
        if self._adopts_replicas:
            self._containers.start()

    async def close(self) -> None:
        """Ends the spawner and finishes removals. Running attempts continue."""
        if tasks := self._stopping_tasks.values():
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._containers.close()
        self._port_claims.close()
        await self._spawner.close()

    # -- launch ----------------------------------------------------------------------------------------------

    async def launch(self, launch: Launch, /) -> None:
        """See `Engine.launch`. Takes a few milliseconds; slow steps (data, environment) are done by the
        replicas."""
        split_attempt(launch.attempt)
        assignments = {a.rank: a for a in launch.placement.assignments}
        for replica in launch.replicas:
            if replica.rank not in assignments or assignments[replica.rank].node not in self._nodes:
                raise LaunchFailed(
                    f"replica {replica.rank} is not placed on a node of the local engine, which has "
                    f"{', '.join(self._nodes)}"
                )
        problem = await asyncio.to_thread(self._health.current_problem)
        if problem:
            raise LaunchFailed(problem)
        if any(replica.image for replica in launch.replicas):
            await self._containers.prepare()
        async with self._lock:
            self._launching.add(launch.attempt)
            try:
                await self._launch(launch, assignments)
            except OSError as error:
                await self._undo_launch(launch.attempt)
                reason = f"the replicas' folders could not be written: {error.strerror or error}"
                self._health.record_failure(reason)
                raise LaunchFailed(reason) from error
            except HopyardError as error:
                await self._undo_launch(launch.attempt)
                if isinstance(error, LaunchFailed):
                    self._health.record_failure(error.message)
                raise
            finally:
                self._launching.discard(launch.attempt)

    async def _launch(self, launch: Launch, assignments: Mapping[int, Assignment]) -> None:
        folders = [ReplicaFolder(self._home.attempts / launch.attempt / str(r.rank)) for r in launch.replicas]
        shares = await self._read_shares()
        to_start = [
            (folder, replica)
            for folder, replica in zip(folders, launch.replicas, strict=True)
            if folder.read_state() is None and not folder.is_alive()
        ]
        if to_start:
            share = shares.setdefault(launch.attempt, AttemptShare())
            assign_rendezvous_ports(launch, folders, share, self._port_claims)
            ranks = node_ranks([*assignments.values()])
            for folder, replica in to_start:
                assignment, rank = assignments[replica.rank], ranks[replica.rank]
                gpus = self._nodes[assignment.node].gpus
                spec = self._specs.build(launch, replica, assignment, rank, gpus, share, shares)
                folder.write_spec(replace(spec, launch=replace(replica, server_url=self._server_url())))
            await self._spawner.spawn([folder.root for folder, _ in to_start])
        self._launched.add(launch.attempt)

    async def _read_shares(self) -> dict[AttemptId, AttemptShare]:
        """Returns the shares of all live attempts."""
        if self._shares is None:
            self._shares = await asyncio.to_thread(read_shares, self._attempt_folders())
            self._port_claims.keep_only(used_ports(self._shares))
        return self._shares

    async def _undo_launch(self, attempt: AttemptId) -> None:
        """Removes a failed launch: kills its replicas (and the kernel kills their children), then removes its
        folder."""
        folder = self._home.attempts / attempt
        for replica in replica_folders(folder):
            self._request_stop(replica, StopOrder(0.0))
            replica.signal(signal.SIGKILL)
        await self._remove(attempt)

    # -- stop, observe, forget -------------------------------------------------------------------------------

    async def stop(self, attempt: AttemptId, order: StopOrder, /) -> None:
        """See `Engine.stop`. Replicas enforce the grace period of their orders themselves.

        A replica that is requested to stop again long after its grace period, and still has not ended its
        script, is frozen. It is killed, and the kernel ends the script with it. Replicas that are not
        essential serve the others, and are stopped after them.
        """
        folder = self._home.attempts / attempt
        if not folder.exists():
            return
        overdue_at = time.monotonic() + order.grace_s + FROZEN_TIMEOUT_S
        overdue_at = self._overdue_at[attempt] = min(self._overdue_at.get(attempt, overdue_at), overdue_at)
        await asyncio.to_thread(self._order_stop, folder, order, overdue=time.monotonic() > overdue_at)

    def _order_stop(self, attempt: Path, order: StopOrder, *, overdue: bool) -> None:
        states = [(folder, folder.read_state()) for folder in replica_folders(attempt)]
        running = {folder.rank for folder, state in states if state is None or state.exit is None}
        first = (
            {folder.rank for folder, _ in states if folder.rank in running and self._is_awaited(folder)}
            if len(states) > 1
            else set()
        )
        for folder, state in states:
            if first and folder.rank not in first and order.grace_s > 0 and not overdue:
                continue
            if state is None or not state.shipped:
                self._request_stop(folder, order)
                if overdue and self._must_be_killed(folder, state):
                    folder.signal(signal.SIGKILL)

    def _must_be_killed(self, folder: ReplicaFolder, state: ReplicaState | None) -> bool:
        """Returns whether to kill a replica whose order is overdue. One whose script has ended is given time
        to send the rest. If it cannot finish, an adoption does."""
        if state is None or state.exit is None or is_frozen(state.pid):
            return True
        now = time.monotonic()
        if now - self._sending_since.setdefault(folder.root, now) <= SENDING_TIMEOUT_S:
            return False
        self._sending_since[folder.root] = now
        return True

    def _request_stop(self, folder: ReplicaFolder, order: StopOrder) -> None:
        """Writes the order. If that fails, the replica is woken up: it gets the same request from
        the server."""
        while True:
            try:
                folder.request_stop(order)
                return
            except OSError as error:
                if is_disk_full(error) and self._free_disk_space(self._home.attempts):
                    continue
                log.warning("cannot write the stop request to %s: %s", folder.root, error.strerror or error)
                folder.signal(signal.SIGTERM)
                return

    async def observe(self) -> Observation:
        statuses, dead, cached_keys = await asyncio.to_thread(self._observe_replicas)
        if self._shares is not None:
            for status in statuses:
                if all(replica.phase is ReplicaPhase.EXITED for replica in status.replicas):
                    self._shares.pop(status.attempt, None)
            self._port_claims.keep_only(used_ports(self._shares))
        await self._adopt(dead)
        await self._retry_health_checks()
        problem = await asyncio.to_thread(self._health.current_problem)
        for name, node in self._nodes.items():
            if (cached_keys, problem) != (node.holds, node.trouble):
                self._nodes[name] = replace(node, holds=cached_keys, trouble=problem)
        return Observation(nodes=self.nodes, attempts=tuple(statuses))

    async def _retry_health_checks(self) -> None:
        """After a failed launch, checks whether the next one can work."""
        if not self._health.is_due() or not await asyncio.to_thread(self._health.recheck):
            return
        with suppress(LaunchFailed):
            await self._spawner.start()
            self._health.record_success()

    async def wake(self, attempt: AttemptId, /) -> None:
        """Implements `ReplicaNotifier`, by a signal that a replica without a handler ignores."""

        def signal_replicas() -> None:
            for folder in replica_folders(self._home.attempts / attempt):
                folder.signal(signal.SIGURG)

        await asyncio.to_thread(signal_replicas)

    def work_folders(self, attempt: AttemptId, /) -> Mapping[int, Path]:
        """Implements `FolderLocator`."""
        replicas = replica_folders(self._home.attempts / attempt)
        ranks = {replica.work: replica.rank for replica in reversed(replicas) if replica.work.is_dir()}
        return {rank: folder for folder, rank in reversed(ranks.items())}

    async def connect_port(self, attempt: AttemptId, rank: int, port: int, /) -> PortStream:
        """Implements `ConnectsPorts`."""
        return await self._ports.connect(attempt, rank, port)

    async def connect_console(self, attempt: AttemptId, rank: int, /) -> PortStream:
        """Implements `ConnectsConsoles`."""
        return await connect_console(self._home.attempts, attempt, rank)

    async def forget(self, attempt: AttemptId, /) -> None:
        if attempt in self._stopping_tasks or not (self._home.attempts / attempt).exists():
            return
        removal = asyncio.create_task(self._remove(attempt))
        self._stopping_tasks[attempt] = removal
        removal.add_done_callback(lambda _: self._stopping_tasks.pop(attempt, None))

    def _observe_replicas(self) -> tuple[list[AttemptStatus], list[ReplicaFolder], frozenset[str]]:
        statuses: list[AttemptStatus] = []
        dead: list[ReplicaFolder] = []
        for attempt in self._attempt_folders():
            name = AttemptId(attempt.name)
            if name in self._stopping_tasks or name in self._launching:
                continue  # being removed, or being launched: the launch in progress reports its own result
            folders = replica_folders(attempt)
            if not folders or (
                name not in self._launched
                and not all(folder.is_started() or folder.is_alive() for folder in folders)
            ):
                # partly launched by an engine that was killed: not reported, so that it is launched again
                continue
            replicas = tuple(self._observe_replica(folder, dead) for folder in folders)
            statuses.append(AttemptStatus(name, replicas))
            if not all(r.phase is ReplicaPhase.EXITED for r in replicas):
                self._stop_peers(attempt)
        return statuses, dead, self._cached_keys.keys()

    def _observe_replica(self, folder: ReplicaFolder, dead: list[ReplicaFolder]) -> ReplicaStatus:
        # first: a replica that ends between the two reads has written its last state
        alive = folder.is_alive()
        state = folder.read_state()
        if (
            state is not None
            and state.exit is not None
            and state.exit.kind is ExitKind.NODE_FAULT
            and folder.root not in self._gpu_suspects
        ):
            self._gpu_suspects.add(folder.root)
            self._health.recheck_gpus()
        if state is not None and state.shipped and state.exit is not None:
            self._adoptions.pop(folder.root, None)
            return ReplicaStatus(
                folder.rank, ReplicaPhase.EXITED, state.detail, state.exit, *state.start_and_end()
            )
        if not alive:
            adoption = self._adoptions.setdefault(folder.root, _Adoption())
            if adoption.attempts >= MAX_ADOPTIONS:
                return ReplicaStatus(
                    folder.rank,
                    ReplicaPhase.EXITED,
                    exit=self._failed_adoption_exit(folder, state),
                    is_unsent=True,
                )
            dead.append(folder)
        if state is None:
            return ReplicaStatus(folder.rank, ReplicaPhase.PREPARING, "starting")
        if state.phase is ReplicaPhase.EXITED:
            return ReplicaStatus(folder.rank, ReplicaPhase.RUNNING, "sending the rest of its output")
        if alive and is_frozen(state.pid):
            return ReplicaStatus(folder.rank, state.phase, self._frozen_state(folder, state))
        self._stopped_since.pop(folder.root, None)
        return ReplicaStatus(folder.rank, state.phase, state.detail, None, *state.start_and_end())

    def _frozen_state(self, folder: ReplicaFolder, state: ReplicaState) -> str:
        """Returns the detail for a stopped replica. If its script has ended meanwhile, the replica cannot
        report that any more: it is killed, and the attempt is lost."""
        stopped_at = self._stopped_since.setdefault(folder.root, time.monotonic())
        if (
            state.child_pid
            and process_state(state.child_pid) in ("", "Z", "X")
            and time.monotonic() - stopped_at > FROZEN_TIMEOUT_S
        ):
            folder.signal(signal.SIGKILL)
        return "its replica is stopped and sends no reports"

    def _failed_adoption_exit(self, folder: ReplicaFolder, state: ReplicaState | None) -> Exit:
        if state is not None and state.exit is not None:
            return state.exit
        spec = folder.read_spec()
        node = next(iter(self._nodes)) if spec is None else spec.node.id
        return exit_after_replica_death(folder.read_stop(), f"its replica died on node {node}")

    def _stop_peers(self, attempt: Path) -> None:
        """Stops the other replicas of a gang once an essential replica has failed, or all have ended that it
        waits for. The streams of the ended replicas may still be on their way."""
        states = [(folder, folder.read_state()) for folder in replica_folders(attempt)]
        if len(states) < 2:
            return
        exits = [
            (folder, state.exit) for folder, state in states if state is not None and state.exit is not None
        ]
        awaited_exits = [(folder.rank, exit) for folder, exit in exits if self._is_awaited(folder)]
        is_served = bool(awaited_exits) and not any(
            self._is_awaited(folder) for folder, state in states if state is None or state.exit is None
        )
        grace_s = self._grace.total_seconds()
        order = stop_order_for_peers(
            awaited_exits
            if is_served
            else [(folder.rank, exit) for folder, exit in exits if self._is_essential(folder)],
            grace_s,
        )
        if order is None:
            if not is_served:
                return
            order = StopOrder(grace_s, reason="ended with its gang")
        order = replace(order, signal=self._earlier_signal(folder for folder, _ in states))
        for folder, state in states:
            if (state is None or state.exit is None) and not folder.has_stop():
                self._request_stop(folder, order)

    @staticmethod
    def _earlier_signal(folders: Iterable[ReplicaFolder]) -> str:
        """Returns the signal of the order that other replicas of the gang got; "" if it had none."""
        orders = (folder.read_stop() for folder in folders)
        return next((order.signal for order in orders if order is not None and order.signal), "")

    @staticmethod
    def _is_essential(folder: ReplicaFolder) -> bool:
        spec = folder.read_spec()
        return spec is None or spec.launch.essential

    @staticmethod
    def _is_awaited(folder: ReplicaFolder) -> bool:
        """Returns whether the gang ends only after this replica: see `Gang.optional_ranks`."""
        spec = folder.read_spec()
        return spec is None or (spec.launch.essential and not spec.launch.service)

    async def _adopt(self, dead: Sequence[ReplicaFolder]) -> None:
        now = time.monotonic()
        for folder in dead if self._adopts_replicas else ():
            adoption = self._adoptions.setdefault(folder.root, _Adoption())
            if now - adoption.last_at < ADOPT_INTERVAL_S:
                continue
            adoption.last_at = now
            adoption.attempts += 1
            try:
                await self._spawner.spawn([folder.root], adopt=True)
            except LaunchFailed:
                continue  # counted; the next `observe` tries again

    async def _remove(self, attempt: AttemptId) -> None:
        """Waits until the replicas have ended, which write their final state just before, then removes the
        folder."""
        folder = self._home.attempts / attempt
        started_at, killed = time.monotonic(), False
        while alive := [replica for replica in replica_folders(folder) if replica.is_alive()]:
            waited_s = time.monotonic() - started_at
            # frozen, or its script wrote a final state in its name: the kernel ends the script with it
            if waited_s > EXIT_TIMEOUT_S and not killed:
                killed = True
                for replica in alive:
                    replica.signal(signal.SIGKILL)
            if waited_s > 2 * EXIT_TIMEOUT_S:
                return  # `observe` still shows it
            await asyncio.sleep(0.02)
        cgroups: list[Path] = []
        for replica in replica_folders(folder):
            self._adoptions.pop(replica.root, None)
            self._stopped_since.pop(replica.root, None)
            self._sending_since.pop(replica.root, None)
            self._gpu_suspects.discard(replica.root)
            spec = replica.read_spec()
            cgroups += map(Path, spec.node.cgroups.values() if spec is not None else ())
        remove_groups(cgroups)  # a replica removes its own groups, unless it was killed
        self._launched.discard(attempt)
        self._overdue_at.pop(attempt, None)
        if self._shares is not None:
            self._shares.pop(attempt, None)
            self._port_claims.keep_only(used_ports(self._shares))
        specs = {replica.rank: replica.read_spec() for replica in replica_folders(folder)}
        had_containers = any(spec is not None and spec.launch.image for spec in specs.values())
        removed_folder = folder.with_name(f"{_REMOVED_PREFIX}{attempt}-{os.urandom(4).hex()}")
        try:
            # atomic: if this process is killed meanwhile, the folder is either complete or hidden
            folder.rename(removed_folder)
        except FileNotFoundError:
            return
        await asyncio.to_thread(remove_trusted_specs, folder, specs)
        place = self._home.run_places / split_attempt(attempt)[0]
        with suppress(OSError):
            if str(place.readlink()) == str(folder.absolute()):
                place.unlink()
        if had_containers:  # a replica that was killed has left them
            await self._containers.remove_unknown()
        await asyncio.to_thread(remove_tree, removed_folder)

    def _attempt_folders(self) -> list[Path]:
        try:
            with os.scandir(self._home.attempts) as entries:
                listing = list(entries)
        except FileNotFoundError:
            return []
        for entry in listing:
            if entry.name.startswith(_REMOVED_PREFIX) and not self._stopping_tasks and not self._launching:
                remove_tree(Path(entry.path))  # from an engine that was killed during the removal
            elif entry.name.startswith(TRUSTED_SPEC_PREFIX):
                remove_stale_spec(Path(entry.path))
        return [
            Path(entry.path)
            for entry in sorted(listing, key=lambda e: e.name)
            if not entry.name.startswith(".") and entry.is_dir()
        ]
