"""Reconciles engine and store: records observations, forgets ended attempts, requests pending stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from hopyard.controller.background import run_logging_errors
from hopyard.controller.launcher import GangLauncher
from hopyard.controller.leader_election import Leadership
from hopyard.controller.stop_requests import StopRequests
from hopyard.domain.attempt import AttemptPhase, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, RecordResult
from hopyard.interfaces.engine import Engine


class Reconciler:
    """live_attempts: attempts that have not ended, as far as this server knows.
    last_statuses: the latest status that their replicas reported.

    record_unstored: records sentences about parts of a run that are not stored.
    on_recorded: awaited with the recorded changes. request_cycle: called when the nodes changed, so that a
    waiting gang may fit, and when this server begins to lead. request_observation: called when the engine
    should be polled again soon. on_elected: called when this server begins to lead.
    """

    def __init__(
        self,
        cluster: ClusterStore,
        engine: Engine,
        clock: Clock,
        leadership: Leadership,
        launcher: GangLauncher,
        stop_requests: StopRequests,
        *,
        record_unstored: Callable[[RunId, Sequence[str]], Awaitable[None]],
        on_recorded: Callable[[RecordResult], Awaitable[None]],
        request_cycle: Callable[[], None],
        request_observation: Callable[[], None],
        on_elected: Callable[[], object],
    ) -> None:
        self._cluster, self._engine, self._clock, self._leadership = cluster, engine, clock, leadership
        self._launcher = launcher
        self._stop_requests = stop_requests
        self._record_unstored = record_unstored
        self._on_recorded = on_recorded
        self._request_cycle = request_cycle
        self._request_observation = request_observation
        self._on_elected = on_elected
        self.reconciled_epoch: int | None = None  # the epoch for which `live_attempts` and nodes are current
        self._nodes: tuple[Node, ...] = ()
        self.live_attempts: set[AttemptId] = set()
        self.last_statuses: dict[tuple[AttemptId, int], ReplicaStatus] = {}

    async def reconcile(self) -> None:
        """Reconciles fully: records what the engine observes, and corrects each difference between engine and
        store."""
        epoch = await self._leadership.acquire_epoch()
        if epoch is None:
            self.reconciled_epoch = None
            await self._reconcile_as_follower()
            self._request_observation()
            return
        # another server may have led meanwhile, and left work unfinished
        if epoch != self.reconciled_epoch:
            await self.refresh_live_attempts()
            await self._mark_foreign_nodes_unready()
            self.reconciled_epoch = epoch
            self._on_elected()
            self._request_cycle()
        observation, launched_before, _ = await self._record_observation()
        live = await self.refresh_live_attempts()
        observed_attempts = {status.attempt for status in observation.attempts}
        self._stop_requests.retain({*live, *observed_attempts})
        await self._repair(live, observed_attempts, launched_before)
        has_unforgotten = await self._forget_ended(observation, live)
        # a node that reports trouble may be schedulable soon
        if live or has_unforgotten or any(node.trouble for node in self._nodes):
            self._request_observation()

    async def record_changes(self) -> None:
        """Records what the engine observes, and forgets ended attempts. Everything else is left to the next
        full reconciliation."""
        if self.reconciled_epoch is None or await self._leadership.acquire_epoch() != self.reconciled_epoch:
            await self.reconcile()
            return
        _, _, recorded = await self._record_observation()
        for ended in recorded.ended:
            await self._engine.forget(ended.attempt)
        if any(node.trouble for node in self._nodes):
            self._request_observation()

    async def _reconcile_as_follower(self) -> None:
        """Reconciles while another server leads: carries out requested stops on this engine, and records
        ends."""
        observation = await self._engine.observe()
        if not observation.attempts:
            return
        await self._record_unsent(observation)
        await self._on_recorded(
            await self._cluster.record_observation(
                self._engine.name,
                Observation((), observation.attempts),
                now=self._clock.now(),
                complete=False,
            )
        )
        live = await self.refresh_live_attempts()
        observed_attempts = {status.attempt for status in observation.attempts}
        self._stop_requests.retain(observed_attempts)
        if any(live.get(attempt) == AttemptPhase.STOPPING for attempt in observed_attempts):
            snapshot = await self._cluster.snapshot(now=self._clock.now())
            preempted = {running.attempt for running in snapshot.running if running.preempted_for is not None}
            orders = await self._cluster.stop_orders()
            for attempt in sorted(observed_attempts):
                if live.get(attempt) == AttemptPhase.STOPPING:
                    self._stop_requests.ensure_requested(
                        attempt, preempt=attempt in preempted, order=orders.get(attempt)
                    )
        await self._forget_ended(observation, live)

    async def _mark_foreign_nodes_unready(self) -> None:
        """Marks nodes of other engines as not ready, since a server can start runs only on its own engine.
        Their server marks them ready again when it leads."""
        nodes = await self._cluster.nodes()
        for engine in sorted(
            {node.engine for node in nodes if node.ready and node.engine != self._engine.name}
        ):
            await self._cluster.record_observation(
                engine, Observation((), ()), now=self._clock.now(), launched=()
            )

    async def refresh_live_attempts(self) -> Mapping[AttemptId, str]:
        """Reads the live attempts from the store. Returns their phases."""
        live = await self._cluster.live_attempts()
        self.live_attempts = set(live)
        self._stop_requests.retain_orders(live)
        for key in [key for key in self.last_statuses if key[0] not in live]:
            del self.last_statuses[key]
        return live

    async def _record_observation(self) -> tuple[Observation, set[AttemptId], RecordResult]:
        """Records what the engine observes. Returns the observation, the attempts launched before it, which
        it must therefore contain, and the recorded changes."""
        launched_before = self.live_attempts - self._launcher.launching_attempts()
        observation = await self._engine.observe()
        await self._record_unsent(observation)  # before the engine forgets the attempt
        recorded = await self._cluster.record_observation(
            self._engine.name, observation, now=self._clock.now(), launched=launched_before
        )
        await self._on_recorded(recorded)
        observed_attempts = {status.attempt for status in observation.attempts}
        for ended in recorded.ended:
            # lost, or only partly launched: the engine will never report it, so it is forgotten now
            if ended.attempt not in observed_attempts:
                await run_logging_errors(self._engine.forget(ended.attempt))
        if observation.nodes != self._nodes:
            self._nodes = observation.nodes
            self._request_cycle()
        return observation, launched_before, recorded

    async def _record_unsent(self, observation: Observation) -> None:
        """Records that replicas ended before they had sent everything."""
        for status in observation.attempts:
            for replica in status.replicas:
                if replica.is_unsent:
                    text = (
                        f"the last output and files of replica {replica.rank} may be missing: "
                        "its replica program ended several times before it had sent them"
                    )
                    run, _ = split_attempt(status.attempt)
                    await run_logging_errors(self._record_unstored(run, [text]))

    async def _repair(
        self,
        live: Mapping[AttemptId, str],
        observed_attempts: set[AttemptId],
        launched_before: set[AttemptId],
    ) -> None:
        """Requests pending stops, and launches attempts that were recorded but never launched because the
        server ended in between."""
        unobserved = {
            attempt
            for attempt in live
            if attempt in launched_before
            and attempt not in observed_attempts
            and attempt not in self._launcher
        }
        ending = [
            attempt
            for attempt, phase in live.items()
            if phase == AttemptPhase.STOPPING and attempt not in unobserved
        ]
        if not unobserved and not ending:
            return
        snapshot = await self._cluster.snapshot(now=self._clock.now())
        running = {running.attempt: running for running in snapshot.running}
        # Attempts on nodes of another server are left to that server, no matter how long it is down.
        foreign = {
            attempt
            for attempt, record in running.items()
            if snapshot.engine_of(record) not in (self._engine.name, None)
        }
        unobserved, ending = unobserved - foreign, [attempt for attempt in ending if attempt not in foreign]
        orders = await self._cluster.stop_orders() if ending else {}
        for attempt in ending:
            record = running.get(attempt)
            self._stop_requests.ensure_requested(
                attempt,
                preempt=record is not None and record.preempted_for is not None,
                order=orders.get(attempt),
            )
        for attempt in live:
            if attempt not in unobserved:
                continue
            record = running.get(attempt)
            if live[attempt] == AttemptPhase.STARTING and record is not None:
                self._request_observation()
                self._launcher.launch([(attempt, record.placement)])
            elif live[attempt] == AttemptPhase.STOPPING:
                await self._launcher.fail_attempt(attempt, "stopped before it was started")

    async def _forget_ended(self, observed: Observation, live: Mapping[AttemptId, str]) -> bool:
        """Lets the engine forget attempts whose end is recorded, and stops attempts that the store has ended.
        Returns whether the engine still has such attempts."""
        has_unforgotten = False
        for status in observed.attempts:
            if status.attempt in live:
                continue
            if all(replica.phase is ReplicaPhase.EXITED for replica in status.replicas):
                await self._engine.forget(status.attempt)
            else:
                has_unforgotten = True
                self._stop_requests.request_stop(status.attempt)
        return has_unforgotten
