"""The truth about what waits and what runs, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, select, update

from hopyard.domain import attempt_news
from hopyard.domain.attempt import AttemptPhase, AttemptStatus
from hopyard.domain.cluster import Node, Observation, Plan, PlanResult, Running, Snapshot
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId
from hopyard.domain.run import RunPhase
from hopyard.errors import NotFound
from hopyard.interfaces.cluster_store import Recorded
from hopyard.stores.sql import attempt_rows, node_rows
from hopyard.stores.sql.apply_plan import apply_plan
from hopyard.stores.sql.attempt_rows import Found
from hopyard.stores.sql.codec import decode_placement, decode_replicas, decode_roles, encode_exit, from_us, from_us_or_none, to_us
from hopyard.stores.sql.counting import bump_version, current_version
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.hold_rows import drop_holds
from hopyard.stores.sql.tables import attempts, runs

_GANG = (runs.c.id, runs.c.gang, runs.c.submitted_at, runs.c.queue, runs.c.priority, runs.c.user_name)
_PENDING = select(*_GANG).where(runs.c.phase == str(RunPhase.QUEUED))
_RUNNING = select(*_GANG, attempts.c.placement, attempts.c.id, attempts.c.placed_at, attempts.c.started_at, attempts.c.phase).join(attempts, attempts.c.run == runs.c.id).where(attempt_rows.LIVE)


class SqlClusterStore:
    """ClusterStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def snapshot(self, *, now: datetime) -> Snapshot:
        def read(conn: Connection) -> Snapshot:
            return Snapshot(
                version=current_version(conn),
                now=now,
                nodes={node.id: node for node in node_rows.all_nodes(conn)},
                pending=tuple(_gang(*row) for row in conn.execute(_PENDING)),
                running=tuple(_running(*row) for row in conn.execute(_RUNNING)),
            )

        return await self._database.read(read)

    async def apply(self, plan: Plan, /, *, now: datetime) -> PlanResult:
        return await self._database.write(lambda conn: apply_plan(conn, plan, to_us(now)))

    async def record(self, engine: str, seen: Observation, /, *, now: datetime, complete: bool = True) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = attempt_rows.Changes(conn, to_us(now))
            if complete and node_rows.replace_nodes(conn, engine, seen.nodes):
                changes.seen_by_policy = True
            news = {status.attempt: status for status in seen.attempts}
            for found in attempt_rows.find_live(conn, engine=engine):
                if found.before.attempt in news:
                    changes.make(found, attempt_news.take_in(found.before, news[found.before.attempt]))
                elif complete and found.before.phase is not AttemptPhase.STARTING:
                    changes.make(found, _lost(found, attempt_news.VANISHED))
            return changes.finish()

        return await self._database.write(write)

    async def record_status(self, status: AttemptStatus, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = attempt_rows.Changes(conn, to_us(now))
            for found in attempt_rows.find_live(conn, attempt=status.attempt):
                changes.make(found, attempt_news.take_in(found.before, status))
            return changes.finish()

        return await self._database.write(write)

    async def replicas(self, attempt: AttemptId, /) -> AttemptStatus:
        def read(conn: Connection) -> AttemptStatus:
            text = conn.execute(select(attempts.c.replicas).where(attempts.c.id == attempt)).scalar()
            if text is None:
                raise NotFound(f"there is no attempt {attempt}")
            return AttemptStatus(attempt, decode_replicas(text))

        return await self._database.read(read)

    async def fail_launch(self, attempt: AttemptId, reason: str, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            changes = attempt_rows.Changes(conn, to_us(now))
            for found in attempt_rows.find_live(conn, attempt=attempt):
                changes.make(found, _lost(found, reason))
            return changes.finish()

        return await self._database.write(write)

    async def request_stop(self, run: RunId, /, *, now: datetime) -> Recorded:
        def write(conn: Connection) -> Recorded:
            phase = conn.execute(select(runs.c.phase).where(runs.c.id == run)).scalar()
            if phase is None:
                raise NotFound(f"no run has the id {run}")
            if RunPhase(phase).final:
                return Recorded()
            if phase == RunPhase.QUEUED:
                return _cancel(conn, run, to_us(now))
            conn.execute(update(runs).where(runs.c.id == run).values(stop_requested=True))
            changes = attempt_rows.Changes(conn, to_us(now))
            for found in attempt_rows.find_live(conn, run=run):
                if found.before.phase is not AttemptPhase.STOPPING:
                    changes.make(found, attempt_news.stop(found.before))
            return changes.finish()

        return await self._database.write(write)

    async def live_attempts(self) -> Mapping[AttemptId, str]:
        def read(conn: Connection) -> dict[AttemptId, str]:
            return {AttemptId(id_): phase for id_, phase in conn.execute(_LIVE_PHASES)}

        return await self._database.read(read)

    async def nodes(self) -> Sequence[Node]:
        return await self._database.read(node_rows.all_nodes)


_LIVE_PHASES = select(attempts.c.id, attempts.c.phase).where(attempt_rows.LIVE).order_by(attempts.c.id)


def _lost(found: Found, reason: str) -> attempt_news.After:
    return attempt_news.end(found.before, AttemptPhase.LOST, attempt_news.lost(reason))


def _cancel(conn: Connection, run: RunId, now: int) -> Recorded:
    """Take a run out of the queue."""
    conn.execute(
        update(runs)
        .where(runs.c.id == run, runs.c.phase == str(RunPhase.QUEUED))
        .values(
            phase=str(RunPhase.CANCELLED), stop_requested=True, ended_at=now, exit=encode_exit(attempt_news.CANCELLED_IN_QUEUE)
        )
    )
    drop_holds(conn, [run])
    bump_version(conn)
    return Recorded(changed=(run,))


def _gang(run: str, roles: str, submitted_at: int, queue: str, priority: int, user: str) -> Gang:
    return Gang(GangId(run), decode_roles(roles), from_us(submitted_at), QueueName(queue), priority, user)


def _running(
    run: str,
    roles: str,
    submitted_at: int,
    queue: str,
    priority: int,
    user: str,
    placement: str,
    attempt: str,
    placed_at: int,
    started_at: int | None,
    phase: str,
) -> Running:
    places = decode_placement(placement)
    assignments = tuple(Assignment(rank, NodeId(node), gpus) for rank, (node, gpus) in enumerate(places))
    return Running(
        Placement(_gang(run, roles, submitted_at, queue, priority, user), assignments),
        from_us(placed_at),
        AttemptId(attempt),
        from_us_or_none(started_at),
        stopping=phase == AttemptPhase.STOPPING,
    )
