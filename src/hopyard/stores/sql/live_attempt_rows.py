"""Rows of live attempts: the part that a policy sees, and the data that decide their transitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, literal_column, select

from hopyard.domain.attempt import AttemptPhase, ReplicaStatus
from hopyard.domain.attempt_state import AttemptState
from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, RunId
from hopyard.domain.run import RunPhase
from hopyard.stores.sql.codec import (
    decode_counts,
    decode_placement,
    decode_replicas,
    from_us,
    from_us_or_none,
)
from hopyard.stores.sql.gang_rows import GANG_COLUMN_COUNT, GANG_COLUMNS, to_gang
from hopyard.stores.sql.tables import attempts, runs

# A literal, not a bound value, so that both databases use the partial index.
IS_LIVE = attempts.c.live == literal_column("1")

# A live attempt is the newest of its run. An ended one need not be, and is returned as well, so that it is
# dropped.
_COLUMNS = (
    attempts.c.id.label("attempt"),
    attempts.c.live,
    attempts.c.phase,
    attempts.c.placement,
    attempts.c.counts,
    attempts.c.placed_at,
    attempts.c.started_at,
    attempts.c.saved_at,
    attempts.c.preempted_for,
    attempts.c.asked_at,
    attempts.c.engine,
    attempts.c.replicas,
    runs.c.phase.label("run_phase"),
    runs.c.started_at.label("run_started_at"),
    runs.c.stop_requested,
    runs.c.max_attempts,
    runs.c.losses,
    runs.c.refusals,
)
_SELECT_ATTEMPTS = select(*GANG_COLUMNS, *_COLUMNS).join(runs, runs.c.id == attempts.c.run)
_SELECT_LIVE = _SELECT_ATTEMPTS.where(IS_LIVE).order_by(attempts.c.id)
_SELECT_TOUCHED = _SELECT_ATTEMPTS.where(attempts.c.touched > bindparam("b_clock")).order_by(attempts.c.id)
_SELECT_LIVE_IDS = select(attempts.c.id).where(IS_LIVE)


@dataclass(slots=True)
class LiveAttempt:
    """A live attempt as stored, and its placement. gang: as it waited, before it was sized.

    last_unchanged_report: the last report of its engine that changed nothing; an equal report is skipped.
    """

    id: AttemptId
    run: RunId
    gang: Gang
    placement: Placement
    engine: str
    phase: AttemptPhase
    replicas: tuple[ReplicaStatus, ...]
    placed_at: int
    started_at: int | None
    saved_at: int | None
    preempted_for: GangId | None
    preempt_requested_at: int | None
    run_phase: RunPhase
    run_started_at: int | None
    stop_requested: bool
    max_attempts: int
    losses: int
    refusals: int
    last_unchanged_report: tuple[ReplicaStatus, ...] | None = None

    def to_running(self) -> Running:
        """Returns the attempt as a policy sees it."""
        return Running(
            self.placement,
            from_us(self.placed_at),
            self.id,
            from_us_or_none(self.started_at),
            from_us_or_none(self.saved_at),
            stopping=self.phase is AttemptPhase.STOPPING,
            preempted_for=self.preempted_for,
            preempt_requested_at=from_us_or_none(self.preempt_requested_at),
        )

    def to_attempt_state(self) -> AttemptState:
        return AttemptState(
            attempt=self.id,
            phase=self.phase,
            replicas=self.replicas,
            size=len(self.placement.assignments),
            losses=self.losses,
            refusals=self.refusals,
            run_phase=self.run_phase,
            stop_requested=self.stop_requested,
            max_attempts=self.max_attempts,
            preempted=self.preempted_for is not None,
            optional=self.placement.gang.optional_ranks(),
            services=self.placement.gang.service_ranks(),
        )


def touched_since(conn: Connection, clock: int) -> Iterator[Any]:
    """Yields rows of attempts that changed after `clock`, ended ones included; all live ones if it is
    negative."""
    return iter(
        conn.execute(_SELECT_LIVE) if clock < 0 else conn.execute(_SELECT_TOUCHED, {"b_clock": clock})
    )


def live_ids(conn: Connection) -> set[AttemptId]:
    return set(conn.execute(_SELECT_LIVE_IDS).scalars())


def to_placement(row: Any, gang: Gang) -> Placement:
    counts = tuple(role.replicas for role in gang.roles) if row.counts is None else decode_counts(row.counts)
    return Placement(gang.with_replica_counts(counts), decode_placement(row.placement))


def to_running(row: Any, cached: Running | None) -> Running:
    """Returns the attempt as a policy sees it; copies the constant parts from `cached`."""
    placement = cached.placement if cached is not None else to_placement(row, to_gang(row))
    return Running(
        placement,
        from_us(row.placed_at) if cached is None else cached.placed_at,
        AttemptId(row.attempt),
        from_us_or_none(row.started_at),
        from_us_or_none(row.saved_at),
        stopping=row.phase == AttemptPhase.STOPPING,
        preempted_for=row.preempted_for,
        preempt_requested_at=from_us_or_none(row.asked_at),
    )


def to_live_attempt(row: Any, cached: LiveAttempt | None) -> LiveAttempt:
    gang = to_gang(row) if cached is None else cached.gang
    (
        _,
        live,
        phase,
        _,
        _,
        placed_at,
        started_at,
        saved_at,
        preempted_for,
        preempt_requested_at,
        engine,
        replicas,
        *run_values,
    ) = row[GANG_COLUMN_COUNT:]
    assert live
    run_phase, run_started_at, stop_requested, max_attempts, losses, refusals = run_values
    return LiveAttempt(
        AttemptId(row.attempt),
        RunId(row[0]),
        gang,
        to_placement(row, gang) if cached is None else cached.placement,
        engine,
        AttemptPhase(phase),
        decode_replicas(replicas),
        placed_at,
        started_at,
        saved_at,
        preempted_for,
        preempt_requested_at,
        RunPhase(run_phase),
        run_started_at,
        stop_requested,
        max_attempts,
        losses,
        refusals,
        cached.last_unchanged_report
        if cached is not None and cached.phase == phase and cached.replicas == decode_replicas(replicas)
        else None,
    )
