"""The truth about what waits and what runs, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain import attempt_news
from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.cluster import Hold, KnownServer, Node, Observation, Plan, PlanResult, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, Version
from hopyard.domain.run import Run, RunEvent, RunPhase, no_process_to_stop
from hopyard.domain.run_change import changed_meanwhile, waits_no_longer, waits_otherwise
from hopyard.errors import NotFound, NotLeader
from hopyard.interfaces.cluster_store import Lease, Recorded
from hopyard.stores.memory.applying import Applying
from hopyard.stores.memory.changes import Changes
from hopyard.stores.memory.nodes import Nodes
from hopyard.stores.memory.rows import RunRow
from hopyard.stores.memory.state import State, run_of


class MemoryClusterStore:
    """Implements `hopyard.interfaces.cluster_store.ClusterStore`.
    No call ever waits, so each is one atomic step."""

    def __init__(self, state: State) -> None:
        self._state, self._nodes = state, Nodes(state)

    # -- who decides
    # ------------------------------------------------------------------------------------------------

    async def lead(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        state, lease = self._state, self._state.lease
        if lease is not None and lease.holder != holder and now < lease.expires_at <= now + 2 * ttl:
            return None
        if lease is None or lease.holder != holder:
            state.epoch += 1
        state.lease = Lease(holder, state.epoch, now + ttl)
        return state.lease

    async def resign(self, holder: str, /) -> None:
        if self._state.lease is not None and self._state.lease.holder == holder:
            self._state.lease = None

    def _check_leader(self, epoch: int) -> None:
        if self._state.lease is None or self._state.lease.epoch != epoch:
            raise NotLeader("another server decides now")

    # -- plans
    # ------------------------------------------------------------------------------------------------------

    async def version(self) -> Version:
        return Version(self._state.version)

    async def snapshot(self, *, now: datetime) -> Snapshot:
        return self._state.snapshot(now)

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        self._check_leader(epoch)
        return Applying(self._state, now).apply(plan)

    async def note_holds(
        self,
        holds: Sequence[Hold],
        /,
        *,
        based_on: Version,
        now: datetime,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[RunId]:
        self._check_leader(epoch)
        state, before = self._state, self._state.holds()
        state.note_holds(holds, based_on)
        return [
            RunId(hold.gang)
            for hold in holds
            if state.waits_unchanged(hold.gang, based_on) and _differs(before.get(hold.gang), hold)
        ]

    # -- news
    # -------------------------------------------------------------------------------------------------------

    async def record(
        self,
        engine: str,
        seen: Observation,
        /,
        *,
        now: datetime,
        complete: bool = True,
        launched: Collection[AttemptId] | None = None,
    ) -> Recorded:
        changes = Changes(self._state, now)
        if complete and self._nodes.take_in(engine, seen.nodes):
            changes.seen_by_policy = True
        news = {status.attempt: status for status in seen.attempts}
        attempts: Iterable[AttemptId] = (
            sorted(self._state.live) if complete else [one for one in news if one in self._state.live]
        )
        for attempt in attempts:
            run = self._state.live_run(attempt)
            if run is None or run.attempts[-1].engine != engine:
                continue
            if attempt in news:
                if news[attempt].replicas != run.attempts[-1].replicas:
                    changes.make(run, attempt_news.take_in(changes.before(run), news[attempt]))
            elif (
                complete
                and run.attempts[-1].phase is not AttemptPhase.STARTING
                and (launched is None or attempt in launched)
            ):
                changes.make(run, _lost(changes.before(run), attempt_news.VANISHED))
        return changes.finish()

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> Recorded:
        run = self._state.live_run(status.attempt)
        if run is None:
            return Recorded()
        changes = Changes(self._state, now)
        changes.make(run, attempt_news.take_in(changes.before(run), status))
        return changes.finish()

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        run = self._state.runs.get(run_of(attempt))
        for row in () if run is None else run.attempts:
            if row.id == attempt:
                return AttemptStatus(attempt, row.replicas)
        raise NotFound(f"there is no attempt {attempt}")

    async def fail_launch(
        self, attempt: AttemptId, reason: str, /, *, now: datetime, kind: ExitKind = ExitKind.LOST
    ) -> Recorded:
        run = self._state.live_run(attempt)
        if run is None:
            return Recorded()
        changes = Changes(self._state, now)
        changes.make(run, attempt_news.fail_launch(changes.before(run), reason, kind))
        return changes.finish()

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Recorded:
        row = self._existing(run)
        if row.phase.final:
            return Recorded()
        if row.offline:
            raise no_process_to_stop(str(row.name))
        row.stop_requested = True
        if row.phase is RunPhase.QUEUED:
            row.move(RunPhase.CANCELLED)
            row.ended_at, row.exit = now, attempt_news.CANCELLED_IN_QUEUE
            self._state.wait_no_more(row.gang.id)
            self._state.changed()
            return Recorded(changed=(run,))
        changes = Changes(self._state, now)
        if row.attempts[-1].phase is not AttemptPhase.STOPPING:
            changes.make(row, attempt_news.stop(changes.before(row)))
        return changes.finish()

    async def change(self, before: Run, after: Run, event: RunEvent, /) -> None:
        row, state = self._existing(before.id), self._state
        held_by = row.held_by if row.phase is RunPhase.QUEUED else None
        if (row.spec, held_by, row.note) != (before.spec, before.held_by, before.note):
            raise changed_meanwhile(before)
        if waits_otherwise(before, after):
            if row.phase is not RunPhase.QUEUED:
                raise waits_no_longer(before, row.phase)
            gang = after.spec.as_gang(
                row.id, row.name.user, submitted_at=row.submitted_at, served_s=row.gang.served_s
            )
            kept = row.gang  # of how it waited until now
            row.gang = replace(
                gang,
                roles=state.shape(gang.roles),
                preemptions=kept.preemptions,
                not_before=kept.not_before,
                put_back=kept.put_back,
            )
            row.changed = True
            state.wait_no_more(row.gang.id)
            state.forget_hold(row.gang.id)
            if after.held_by is None:
                state.wait(row.gang)
            state.changed()
        row.spec, row.held_by, row.note = after.spec, after.held_by, after.note
        row.events.append(event)

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> Recorded:
        row = self._existing(run)
        if (
            row.attempt is None
            or row.attempt.id not in self._state.live
            or row.attempt.phase is AttemptPhase.STOPPING
        ):
            return Recorded()
        return Applying(self._state, now).make_room(row, GangId(""), reason)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return dict(self._state.live)

    # -- nodes
    # ------------------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return list(self._state.seen_nodes.get().values())

    async def cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        return self._nodes.cordon(node, on, reason=reason)

    async def note_server(self, server: KnownServer, /) -> None:
        self._state.servers[server.engine] = server

    async def servers(self) -> Sequence[KnownServer]:
        return [self._state.servers[engine] for engine in sorted(self._state.servers)]

    async def remove_node(self, node: NodeId, /) -> None:
        found = self._state.nodes.get(node)
        self._nodes.remove(node)
        if found is not None and all(other.engine != found.engine for other in self._state.nodes.values()):
            self._state.servers.pop(found.engine, None)

    # -- rows
    # -------------------------------------------------------------------------------------------------------

    def _existing(self, run: RunId) -> RunRow:
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}")
        return row


def _lost(before: attempt_news.Before, reason: str) -> attempt_news.After:
    return attempt_news.end(before, AttemptPhase.LOST, attempt_news.lost(reason))


def _differs(before: Hold | None, after: Hold) -> bool:
    """Beside the position: that everybody moved up is no news."""
    return before is None or (before.reason, before.detail, before.blocked_by, before.expected_at) != (
        after.reason,
        after.detail,
        after.blocked_by,
        after.expected_at,
    )
