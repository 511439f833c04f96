"""Committing a plan: each gang is checked once more against the truth of this moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import Plan, PlanResult
from hopyard.domain.gang import Placement
from hopyard.domain.ids import GangId, RunId, attempt_id
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.attempt_rows import LIVE
from hopyard.stores.sql.capacity import Capacity, ranked_roles
from hopyard.stores.sql.checkpoint_rows import newest_steps
from hopyard.stores.sql.codec import decode_placement, decode_roles, encode_placement
from hopyard.stores.sql.counting import bump_version, current_version
from hopyard.stores.sql.hold_rows import drop_holds, write_holds
from hopyard.stores.sql.node_rows import all_nodes
from hopyard.stores.sql.tables import IDS_PER_QUERY, attempts, runs

_HELD = select(runs.c.gang, attempts.c.placement).join(attempts, attempts.c.run == runs.c.id).where(LIVE)
_WAITING = select(runs.c.id, runs.c.gang, runs.c.attempts, runs.c.resume_step).where(runs.c.phase == str(RunPhase.QUEUED))
_START = (
    update(runs)
    .where(runs.c.id == bindparam("b_id"), runs.c.phase == str(RunPhase.QUEUED))
    .values(phase=str(RunPhase.STARTING), attempts=bindparam("b_attempts"))
)
_ATTEMPT_INSERT = attempts.insert()


def apply_plan(conn: Connection, plan: Plan, now: int) -> PlanResult:
    """See ClusterStore.apply; `now` in microseconds."""
    started, rejected = _place(conn, plan.place, now) if plan.place else ([], {})
    write_holds(conn, plan.hold)
    version = bump_version(conn) if started else current_version(conn)
    return PlanResult(tuple(started), rejected, version)


def _place(conn: Connection, wanted: Sequence[Placement], now: int) -> tuple[list[GangId], dict[GangId, str]]:
    capacity = _capacity(conn)
    waiting = _waiting(conn, [placement.gang.id for placement in wanted])
    steps = _steps(conn, waiting)
    fresh: list[dict[str, Any]] = []
    rejected: dict[GangId, str] = {}
    for placement in wanted:
        gang = placement.gang.id
        row = waiting.pop(gang, None)
        if row is None:
            rejected[gang] = "it no longer waits"
            continue
        reason = capacity.take(ranked_roles(decode_roles(row.gang)), placement.assignments)
        if reason is not None:
            rejected[gang] = reason
            continue
        engine = capacity.engine_of(placement.assignments[0])
        fresh.append(_attempt_row(placement, row, engine=engine, step=steps.get(RunId(gang), row.resume_step), now=now))
    if fresh:
        conn.execute(_ATTEMPT_INSERT, fresh)
        conn.execute(_START, [{"b_id": row["run"], "b_attempts": row["number"]} for row in fresh])
        drop_holds(conn, [row["run"] for row in fresh])
    return [GangId(row["run"]) for row in fresh], rejected


def _attempt_row(placement: Placement, row: Any, *, engine: str, step: int | None, now: int) -> dict[str, Any]:
    number = row.attempts + 1
    return {
        "id": attempt_id(RunId(row.id), number),
        "run": row.id,
        "number": number,
        "phase": str(AttemptPhase.STARTING),
        "live": 1,
        "engine": engine,
        "placement": encode_placement(placement.assignments),
        "replicas": "[]",
        "placed_at": now,
        "resumed_from_step": step,
    }


def _capacity(conn: Connection) -> Capacity:
    capacity = Capacity(all_nodes(conn))
    for roles, placement in conn.execute(_HELD):
        capacity.hold(ranked_roles(decode_roles(roles)), decode_placement(placement))
    return capacity


def _waiting(conn: Connection, gangs: Sequence[GangId]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at in range(0, len(gangs), IDS_PER_QUERY):
        for row in conn.execute(_WAITING.where(runs.c.id.in_(gangs[at : at + IDS_PER_QUERY]))):
            found[row.id] = row
    return found


def _steps(conn: Connection, waiting: dict[str, Any]) -> dict[RunId, int]:
    """Steps to resume from, of those that ran before."""
    again = [RunId(row.id) for row in waiting.values() if row.attempts]
    return newest_steps(conn, again) if again else {}
