"""Reconciles the engine and the store: records observations, forgets ended attempts, requests pending
stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from hopyard.controller.background import run_logging_errors
from hopyard.controller.launcher import Launcher
from hopyard.controller.leader_election import Leadership
from hopyard.controller.stop_requests import StopRequests
from hopyard.domain.attempt import AttemptPhase, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.ids import AttemptId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, RecordResult
from hopyard.interfaces.engine import Engine


class Reconciler:
    """live_attempts: attempts that are not over, as far as is known.
    last_statuses: what their replicas said last of themselves.

    on_recorded: awaited with what was recorded. request_cycle: the nodes are others, so something waiting may
    fit, or this server begins to decide. request_observation: there is something to look at soon. on_elected:
    this server begins to decide.
    """

    def __init__(
        self,
        cluster: ClusterStore,
        engine: Engine,
        clock: Clock,
        leadership: Leadership,
        launcher: Launcher,
        stop_requests: StopRequests,
        *,
        on_recorded: Callable[[RecordResult], Awaitable[None]],
        request_cycle: Callable[[], None],
        request_observation: Callable[[], None],
        on_elected: Callable[[], object],
    ) -> None:
        self._cluster, self._engine, self._clock, self._leadership = cluster, engine, clock, leadership
        self._launcher = launcher
        self._stop_requests = stop_requests
        self._on_recorded = on_recorded
        self._request_cycle = request_cycle
        self._request_observation = request_observation
        self._on_elected = on_elected
        self.reconciled_epoch: int | None = None  # under which `live` and the nodes are known
        self._nodes: tuple[Node, ...] = ()
        self.live_attempts: set[AttemptId] = set()
        self.last_statuses: dict[tuple[AttemptId, int], ReplicaStatus] = {}

    async def reconcile(self) -> None:
        """Everything: what the engine says, what the store has, and what either has that the other should
        know of."""
        epoch = await self._leadership.acquire_epoch()
        if epoch is None:
            self.reconciled_epoch = None
            await self._reconcile_as_follower()
            self._request_observation()
            return
        # another server may have decided meanwhile, and left something undecided
        if epoch != self.reconciled_epoch:
            await self.refresh_live_attempts()
            await self._mark_foreign_nodes_unready()
            self.reconciled_epoch = epoch
            self._on_elected()
            self._request_cycle()
        seen, before, _ = await self._record_observation()
        live = await self.refresh_live_attempts()
        known = {status.attempt for status in seen.attempts}
        self._stop_requests.retain({*live, *known})
        await self._repair(live, known, before)
        remembered = await self._forget_ended(seen, live)
        # a node that is in trouble now may be open in a moment
        if live or remembered or any(node.trouble for node in self._nodes):
            self._request_observation()

    async def record_changes(self) -> None:
        """What the engine says is recorded, and it forgets what ended. All else is left to the next look."""
        if self.reconciled_epoch is None or await self._leadership.acquire_epoch() != self.reconciled_epoch:
            await self.reconcile()
            return
        _, _, recorded = await self._record_observation()
        for ended in recorded.ended:
            await self._engine.forget(ended.attempt)
        if any(node.trouble for node in self._nodes):
            self._request_observation()

    async def _reconcile_as_follower(self) -> None:
        """While another server decides: what runs here ends when that was asked for, and its ends are
        recorded."""
        seen = await self._engine.observe()
        if not seen.attempts:
            return
        await self._on_recorded(
            await self._cluster.record_observation(
                self._engine.name, Observation((), seen.attempts), now=self._clock.now(), complete=False
            )
        )
        live = await self.refresh_live_attempts()
        known = {status.attempt for status in seen.attempts}
        self._stop_requests.retain(known)
        if any(live.get(attempt) == AttemptPhase.STOPPING for attempt in known):
            snapshot = await self._cluster.snapshot(now=self._clock.now())
            preempted = {running.attempt for running in snapshot.running if running.preempted_for is not None}
            for attempt in sorted(known):
                if live.get(attempt) == AttemptPhase.STOPPING:
                    self._stop_requests.ensure_requested(attempt, preempt=attempt in preempted)
        await self._forget_ended(seen, live)

    async def _mark_foreign_nodes_unready(self) -> None:
        """Only on the nodes of its own engine can a server start runs.
        Theirs are ready again when their server decides."""
        nodes = await self._cluster.nodes()
        for engine in sorted(
            {node.engine for node in nodes if node.ready and node.engine != self._engine.name}
        ):
            await self._cluster.record_observation(
                engine, Observation((), ()), now=self._clock.now(), launched=()
            )

    async def refresh_live_attempts(self) -> Mapping[AttemptId, str]:
        """What the store has."""
        live = await self._cluster.live_attempts()
        self.live_attempts = set(live)
        self._stop_requests.retain_graces(live)
        for key in [key for key in self.last_statuses if key[0] not in live]:
            del self.last_statuses[key]
        return live

    async def _record_observation(self) -> tuple[Observation, set[AttemptId], RecordResult]:
        """What the engine saw, what it had to see because it was launched before, and what was recorded of
        it."""
        before = self.live_attempts - self._launcher.launching_attempts()
        seen = await self._engine.observe()
        recorded = await self._cluster.record_observation(
            self._engine.name, seen, now=self._clock.now(), launched=before
        )
        await self._on_recorded(recorded)
        known = {status.attempt for status in seen.attempts}
        for ended in recorded.ended:
            # lost, or only half launched: the engine will never show it, so this is the moment
            if ended.attempt not in known:
                await run_logging_errors(self._engine.forget(ended.attempt))
        if seen.nodes != self._nodes:
            self._nodes = seen.nodes
            self._request_cycle()
        return seen, before, recorded

    async def _repair(
        self,
        live: Mapping[AttemptId, str],
        observed_attempts: set[AttemptId],
        launched_before: set[AttemptId],
    ) -> None:
        """What should end is asked to; what was never started (the server ended in between) is started
        now."""
        unknown = {
            attempt
            for attempt in live
            if attempt in launched_before
            and attempt not in observed_attempts
            and attempt not in self._launcher
        }
        ending = [
            attempt
            for attempt, phase in live.items()
            if phase == AttemptPhase.STOPPING and attempt not in unknown
        ]
        if not unknown and not ending:
            return
        snapshot = await self._cluster.snapshot(now=self._clock.now())
        running = {running.attempt: running for running in snapshot.running}
        # On nodes of another server only that server knows how they end, however long it is away.
        elsewhere = {
            attempt
            for attempt, found in running.items()
            if snapshot.engine_of(found) not in (self._engine.name, None)
        }
        unknown, ending = unknown - elsewhere, [attempt for attempt in ending if attempt not in elsewhere]
        for attempt in ending:
            found = running.get(attempt)
            self._stop_requests.ensure_requested(
                attempt, preempt=found is not None and found.preempted_for is not None
            )
        for attempt in live:
            if attempt not in unknown:
                continue
            found = running.get(attempt)
            if live[attempt] == AttemptPhase.STARTING and found is not None:
                self._request_observation()
                self._launcher.launch([(attempt, found.placement)])
            elif live[attempt] == AttemptPhase.STOPPING:
                await self._launcher.fail_attempt(attempt, "stopped before it was started")

    async def _forget_ended(self, observed: Observation, live: Mapping[AttemptId, str]) -> bool:
        """The engine may forget attempts whose end is recorded; those that nobody wants any more are ended
        first. Whether the engine still remembers any."""
        remembered = False
        for status in observed.attempts:
            if status.attempt in live:
                continue
            if all(replica.phase is ReplicaPhase.EXITED for replica in status.replicas):
                await self._engine.forget(status.attempt)
            else:
                remembered = True
                self._stop_requests.request_stop(status.attempt)
        return remembered
