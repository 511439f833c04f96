"""The truth about what waits and what runs, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches

from hopyard.domain import attempt_news
from hopyard.domain.amounts import placed
from hopyard.domain.attempt import AttemptPhase, AttemptStatus
from hopyard.domain.cluster import Hold, Node, Observation, Plan, PlanResult, Preemption, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, Version, attempt_id
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.domain.sane_node import sane_node
from hopyard.errors import Conflict, NotFound, NotLeader
from hopyard.interfaces.cluster_store import Lease, Recorded
from hopyard.stores.memory.changes import Changes
from hopyard.stores.memory.rows import AttemptRow, RunRow
from hopyard.stores.memory.state import State

_CHANGED = "reservations or queues were changed after this was planned"


class MemoryClusterStore:
    """Implements `hopyard.interfaces.cluster_store.ClusterStore`. No call ever waits, so each is one atomic step."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- who decides ------------------------------------------------------------------------------------------------

    async def lead(self, holder: str, /, *, now: datetime, ttl: timedelta) -> Lease | None:
        state, lease = self._state, self._state.lease
        if lease is not None and lease.holder != holder and now < lease.expires_at:
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

    # -- plans ------------------------------------------------------------------------------------------------------

    async def snapshot(self, *, now: datetime) -> Snapshot:
        return self._state.snapshot(now)

    async def apply(self, plan: Plan, /, *, now: datetime, epoch: int) -> PlanResult:
        self._check_leader(epoch)
        state = self._state
        if state.declared_at > plan.based_on:
            return PlanResult((), {placement.gang.id: _CHANGED for placement in plan.place}, Version(state.version))
        started: list[AttemptRow] = []
        rejected: dict[GangId, str] = {}
        for placement in plan.place:
            reason = self._start(placement, now, started)
            if reason is not None:
                rejected[placement.gang.id] = reason
        preempted = [one.attempt for one in plan.preempt if self._preempt(one, now)]
        self._promise(plan, now)
        if started or preempted:
            state.changed()
        applied = tuple(row.placement.gang.id for row in started)
        return PlanResult(applied, rejected, Version(state.version), tuple(row.id for row in started), tuple(preempted))

    def _start(self, asked: Placement, now: datetime, started: list[AttemptRow]) -> str | None:
        """Why it may not start now; None when it did."""
        state = self._state
        gang = state.pending.get(asked.gang.id)
        if gang is None:
            return "it no longer waits"
        placement = Placement(gang.sized(_counts(gang, asked.gang)), asked.assignments)
        reason = state.holdings.take(placement)
        if reason is not None:
            return reason
        amounts = placed(placement, state.nodes)
        reason = state.charges.refusal(gang.queue, gang.user, amounts)
        if reason is not None:
            state.holdings.hold(placement, -1)
            return reason
        state.charges.charge(gang.queue, gang.user, amounts)
        run = state.runs[RunId(gang.id)]
        number = len(run.attempts) + 1
        step = run.checkpoints[-1].step if run.checkpoints else run.spec.resume.step if run.spec.resume is not None else None
        engine = state.nodes[placement.assignments[0].node].engine
        row = AttemptRow(attempt_id(run.id, number), number, placement, amounts, engine, now, resumed_from_step=step)
        run.attempts.append(row)
        run.phase = RunPhase.STARTING
        state.wait_no_more(gang.id)
        state.show_running(row)
        started.append(row)
        return None

    def _preempt(self, wanted: Preemption, now: datetime) -> bool:
        """Whether the attempt is asked to make room: it lives, nobody asked it to end, and its run allows it."""
        run = self._live_run(wanted.attempt)
        if run is None or run.attempts[-1].phase is AttemptPhase.STOPPING or not run.gang.preemptible:
            return False
        self._make_room(run, wanted.for_gang, wanted.reason, now)
        return True

    def _make_room(self, run: RunRow, for_gang: GangId, reason: str, now: datetime) -> Recorded:
        changes = Changes(self._state, now)
        run.attempts[-1].preempted_for, run.attempts[-1].preempt_reason = for_gang, reason
        changes.make(run, attempt_news.stop(changes.before(run)))
        run.events.append(RunEvent(now, RunEventKind.PREEMPTED, reason))
        return changes.finish()

    def _promise(self, plan: Plan, now: datetime) -> None:
        state = self._state
        after = {one.gang: one for one in plan.promises if one.gang in state.pending}
        broken = {breach.gang for breach in plan.breaches}
        for breach in plan.breaches:
            if breach.gang in state.pending:
                self._tell(breach.gang, RunEventKind.BREACHED, f"{breach.cause}: {breach.detail}", now)
        for gang, promise in after.items():
            if gang not in state.promises or gang in broken:
                self._tell(gang, RunEventKind.PROMISED, f"starts at {promise.start_at:%Y-%m-%d %H:%M:%S} UTC or earlier", now)
        if after != state.promises:
            state.promises = after
            state.seen_promises.stale()
            state.changed()

    def _tell(self, gang: GangId, kind: RunEventKind, detail: str, now: datetime) -> None:
        self._state.runs[RunId(gang)].events.append(RunEvent(now, kind, detail))

    async def note_holds(self, holds: Sequence[Hold], /, *, now: datetime, epoch: int) -> Sequence[RunId]:  # noqa: ARG002
        self._check_leader(epoch)
        state, before = self._state, self._state.holds()
        state.note_holds(holds)
        return [RunId(hold.gang) for hold in holds if hold.gang in state.pending and _differs(before.get(hold.gang), hold)]

    # -- news -------------------------------------------------------------------------------------------------------

    async def record(self, engine: str, seen: Observation, /, *, now: datetime, complete: bool = True) -> Recorded:
        changes = Changes(self._state, now)
        if complete and self._replace_nodes(engine, seen.nodes):
            changes.seen_by_policy = True
        news = {status.attempt: status for status in seen.attempts}
        attempts: Iterable[AttemptId] = sorted(self._state.live) if complete else [one for one in news if one in self._state.live]
        for attempt in attempts:
            run = self._live_run(attempt)
            if run is None or run.attempts[-1].engine != engine:
                continue
            if attempt in news:
                if news[attempt].replicas != run.attempts[-1].replicas:
                    changes.make(run, attempt_news.take_in(changes.before(run), news[attempt]))
            elif complete and run.attempts[-1].phase is not AttemptPhase.STARTING:
                changes.make(run, _lost(changes.before(run), attempt_news.VANISHED))
        return changes.finish()

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> Recorded:
        run = self._live_run(status.attempt)
        if run is None:
            return Recorded()
        changes = Changes(self._state, now)
        changes.make(run, attempt_news.take_in(changes.before(run), status))
        return changes.finish()

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        run = self._state.runs.get(_run_of(attempt))
        for row in () if run is None else run.attempts:
            if row.id == attempt:
                return AttemptStatus(attempt, row.replicas)
        raise NotFound(f"there is no attempt {attempt}")

    async def fail_launch(self, attempt: AttemptId, reason: str, /, *, now: datetime) -> Recorded:
        run = self._live_run(attempt)
        if run is None:
            return Recorded()
        changes = Changes(self._state, now)
        changes.make(run, _lost(changes.before(run), reason))
        return changes.finish()

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Recorded:
        row = self._existing(run)
        if row.phase.final:
            return Recorded()
        row.stop_requested = True
        if row.phase is RunPhase.QUEUED:
            row.phase, row.ended_at, row.exit = RunPhase.CANCELLED, now, attempt_news.CANCELLED_IN_QUEUE
            self._state.wait_no_more(row.gang.id)
            self._state.changed()
            return Recorded(changed=(run,))
        changes = Changes(self._state, now)
        if row.attempts[-1].phase is not AttemptPhase.STOPPING:
            changes.make(row, attempt_news.stop(changes.before(row)))
        return changes.finish()

    async def request_preempt(self, run: RunId, reason: str, /, *, now: datetime) -> Recorded:
        row = self._existing(run)
        if row.attempt is None or row.attempt.id not in self._state.live or row.attempt.phase is AttemptPhase.STOPPING:
            return Recorded()
        return self._make_room(row, GangId(""), reason, now)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        return dict(self._state.live)

    # -- nodes ------------------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[Node]:
        return list(self._state.seen_nodes.get().values())

    async def cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        found = self._node(node)
        self._state.cordoned.pop(node, None)
        if on:
            self._state.cordoned[node] = reason
        after = replace(found, cordoned=on, cordon_reason=reason if on else "")
        if after != found:
            self._set_node(after)
            self._state.changed()
        return after

    async def remove_node(self, node: NodeId, /) -> None:
        state = self._state
        if self._node(node).ready:
            raise Conflict(f"node {node} is there", hints=("its engine sees it; end the engine first",))
        if state.holdings.held_on(node):
            raise Conflict(f"node {node} is held by a run", hints=("wait until its run has ended, or stop it",))
        del state.nodes[node]
        state.cordoned.pop(node, None)
        state.holdings.drop_node(node)
        state.seen_nodes.stale()
        state.totals.stale()
        state.changed()

    def _node(self, node: NodeId) -> Node:
        found = self._state.nodes.get(node)
        if found is None:
            close = get_close_matches(node, self._state.nodes, n=3)
            hint = f"did you mean {' or '.join(f'`{one}`' for one in close)}?" if close else "`hop node ls` lists them"
            raise NotFound(f"there is no node `{node}`", hints=(hint,))
        return found

    def _replace_nodes(self, engine: str, seen: Sequence[Node]) -> bool:
        """The nodes of an engine are those it sees; one that it no longer sees is kept as not ready. Whether anything changed."""
        state = self._state
        if state.said.get(engine) is seen:
            return False
        state.said[engine] = seen
        wanted = {
            node.id: replace(
                sane_node(node)[0],
                engine=engine,
                cordoned=node.id in state.cordoned,
                cordon_reason=state.cordoned.get(node.id, ""),
            )
            for node in seen
        }
        for node in state.nodes.values():
            if node.engine == engine and node.id not in wanted:
                wanted[node.id] = replace(node, ready=False) if node.ready else node
        changed = [node for node in wanted.values() if state.nodes.get(node.id) != node]
        for node in changed:
            self._set_node(node)
        return bool(changed)

    def _set_node(self, node: Node) -> None:
        self._state.nodes[node.id] = node
        self._state.holdings.set_node(node)
        self._state.seen_nodes.stale()
        self._state.totals.stale()

    # -- rows -------------------------------------------------------------------------------------------------------

    def _existing(self, run: RunId) -> RunRow:
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}")
        return row

    def _live_run(self, attempt: AttemptId) -> RunRow | None:
        """The run whose newest attempt this is, while it is live."""
        return self._state.runs[_run_of(attempt)] if attempt in self._state.live else None


def _counts(gang: Gang, planned: Gang) -> list[int]:
    """How many replicas of each role are to start: what the plan says where the gang leaves a choice, else what it asks for."""
    if len(planned.roles) != len(gang.roles):
        return [role.replicas for role in gang.roles]
    pairs = zip(gang.roles, planned.roles, strict=True)
    return [min(max(wanted.replicas, role.fewest), role.replicas) for role, wanted in pairs]


def _run_of(attempt: AttemptId) -> RunId:
    return RunId(attempt.rpartition(".")[0])


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
