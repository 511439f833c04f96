"""Looking at the engine: what it says is recorded, what ended is cleared away, what should end is asked
to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from hopyard.controller.effects import guard_effect
from hopyard.controller.endings import Endings
from hopyard.controller.launcher import Launcher
from hopyard.controller.leader import Leadership
from hopyard.domain.attempt import AttemptPhase, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.ids import AttemptId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine


class Watch:
    """live: attempts that are not over, as far as is known.
    said: what their replicas said last of themselves.

    react: awaited with what was recorded. wake: the nodes are others, so something waiting may fit, or this
    server begins to decide. stir: there is something to look at soon. led: this server begins to decide.
    """

    def __init__(
        self,
        cluster: ClusterStore,
        engine: Engine,
        clock: Clock,
        leader: Leadership,
        launcher: Launcher,
        endings: Endings,
        *,
        react: Callable[[Recorded], Awaitable[None]],
        wake: Callable[[], None],
        stir: Callable[[], None],
        led: Callable[[], object],
    ) -> None:
        self._cluster, self._engine, self._clock, self._leader = cluster, engine, clock, leader
        self._launcher, self._endings, self._react, self._wake, self._stir = (
            launcher,
            endings,
            react,
            wake,
            stir,
        )
        self._led = led
        self.epoch: int | None = None  # under which `live` and the nodes are known
        self._nodes: tuple[Node, ...] = ()
        self.live: set[AttemptId] = set()
        self.said: dict[tuple[AttemptId, int], ReplicaStatus] = {}

    async def look(self) -> None:
        """Everything: what the engine says, what the store has, and what either has that the other should
        know of."""
        epoch = await self._leader.epoch()
        if epoch is None:
            self.epoch = None
            await self._look_after_own()
            self._stir()
            return
        if epoch != self.epoch:  # another server may have decided meanwhile, and left something undecided
            await self.look_what_lives()
            await self._close_nodes_of_others()
            self.epoch = epoch
            self._led()
            self._wake()
        seen, before, _ = await self._take_in()
        live = await self.look_what_lives()
        known = {status.attempt for status in seen.attempts}
        self._endings.keep({*live, *known})
        await self._mend(live, known, before)
        remembered = await self._clear_away(seen, live)
        # a node that is in trouble now may be open in a moment
        if live or remembered or any(node.trouble for node in self._nodes):
            self._stir()

    async def glance(self) -> None:
        """What the engine says is recorded, and it forgets what ended. All else is left to the next look."""
        if self.epoch is None or await self._leader.epoch() != self.epoch:
            await self.look()
            return
        _, _, recorded = await self._take_in()
        for ended in recorded.ended:
            await self._engine.forget(ended.attempt)
        if any(node.trouble for node in self._nodes):
            self._stir()

    async def _look_after_own(self) -> None:
        """While another server decides: what runs here ends when that was asked for, and its ends are
        recorded."""
        seen = await self._engine.observe()
        if not seen.attempts:
            return
        await self._react(
            await self._cluster.record(
                self._engine.name, Observation((), seen.attempts), now=self._clock.now(), complete=False
            )
        )
        live = await self.look_what_lives()
        known = {status.attempt for status in seen.attempts}
        self._endings.keep(known)
        if any(live.get(attempt) == AttemptPhase.STOPPING for attempt in known):
            snapshot = await self._cluster.snapshot(now=self._clock.now())
            preempted = {running.attempt for running in snapshot.running if running.preempted_for is not None}
            for attempt in sorted(known):
                if live.get(attempt) == AttemptPhase.STOPPING:
                    self._endings.remind(attempt, preempt=attempt in preempted)
        await self._clear_away(seen, live)

    async def _close_nodes_of_others(self) -> None:
        """Only on the nodes of its own engine can a server start runs.
        Theirs are ready again when their server decides."""
        nodes = await self._cluster.nodes()
        for engine in sorted(
            {node.engine for node in nodes if node.ready and node.engine != self._engine.name}
        ):
            await self._cluster.record(engine, Observation((), ()), now=self._clock.now(), launched=())

    async def look_what_lives(self) -> Mapping[AttemptId, str]:
        """What the store has."""
        live = await self._cluster.live_attempts()
        self.live = set(live)
        self._endings.keep_graces(live)
        for key in [key for key in self.said if key[0] not in live]:
            del self.said[key]
        return live

    async def _take_in(self) -> tuple[Observation, set[AttemptId], Recorded]:
        """What the engine saw, what it had to see because it was launched before, and what was recorded of
        it."""
        before = self.live - self._launcher.under_way()
        seen = await self._engine.observe()
        recorded = await self._cluster.record(self._engine.name, seen, now=self._clock.now(), launched=before)
        await self._react(recorded)
        known = {status.attempt for status in seen.attempts}
        for ended in recorded.ended:
            # lost, or only half launched: the engine will never show it, so this is the moment
            if ended.attempt not in known:
                await guard_effect(self._engine.forget(ended.attempt))
        if seen.nodes != self._nodes:
            self._nodes = seen.nodes
            self._wake()
        return seen, before, recorded

    async def _mend(
        self, live: Mapping[AttemptId, str], known: set[AttemptId], before: set[AttemptId]
    ) -> None:
        """What should end is asked to; what was never started (the server ended in between) is started
        now."""
        unknown = {
            attempt
            for attempt in live
            if attempt in before and attempt not in known and attempt not in self._launcher
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
            self._endings.remind(attempt, preempt=found is not None and found.preempted_for is not None)
        for attempt in live:
            if attempt not in unknown:
                continue
            found = running.get(attempt)
            if live[attempt] == AttemptPhase.STARTING and found is not None:
                self._stir()
                self._launcher.launch([(attempt, found.placement)])
            elif live[attempt] == AttemptPhase.STOPPING:
                await self._launcher.give_up(attempt, "stopped before it was started")

    async def _clear_away(self, seen: Observation, live: Mapping[AttemptId, str]) -> bool:
        """The engine may forget attempts whose end is recorded; those that nobody wants any more are ended
        first. Whether the engine still remembers any."""
        remembered = False
        for status in seen.attempts:
            if status.attempt in live:
                continue
            if all(replica.phase is ReplicaPhase.EXITED for replica in status.replicas):
                await self._engine.forget(status.attempt)
            else:
                remembered = True
                self._endings.ask(status.attempt)
        return remembered
