"""Commits a plan: each gang is checked again against the current state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from hopyard.domain import attempt_transitions
from hopyard.domain.amounts import placed_amounts
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import PlanResult, Promise
from hopyard.domain.gang import CHANGED_AFTER_PLANNING, Gang, Placement, differs_from_plan
from hopyard.domain.ids import AttemptId, GangId, RunId, Version, attempt_id
from hopyard.domain.plan_record import BreachRecord, PlanRecord
from hopyard.domain.run import RunEventKind, RunPhase, checked_transition
from hopyard.stores.sql.attempt_rows import AttemptChanges
from hopyard.stores.sql.checkpoint_rows import newest_steps
from hopyard.stores.sql.codec import encode_counts, encode_placement
from hopyard.stores.sql.gang_rows import GANG_COLUMN_COUNT, GANG_COLUMNS, to_gang
from hopyard.stores.sql.hold_rows import HoldRows
from hopyard.stores.sql.live_attempt_rows import LiveAttempt
from hopyard.stores.sql.promise_rows import replace_promises
from hopyard.stores.sql.raw_statements import RawSelectByIds, RawStatement
from hopyard.stores.sql.tables import IDS_PER_QUERY, attempts, run_events, runs
from hopyard.stores.sql.versions import WriteStamp
from hopyard.stores.sql.writer_state import WriterState

# By id alone: with a condition on the phase, SQLite would scan all waiting runs.
_SELECT_PENDING = RawSelectByIds(
    select(
        *GANG_COLUMNS,
        runs.c.phase,
        runs.c.attempts,
        runs.c.resume_step,
        runs.c.started_at,
        runs.c.max_attempts,
        runs.c.losses,
        runs.c.refusals,
        runs.c.held_by,
        runs.c.changed,
    ),
    runs.c.id,
)
_SELECT_UNCHANGED = select(runs.c.id).where(
    runs.c.id.in_(bindparam("b_ids", expanding=True)),
    runs.c.phase == str(RunPhase.QUEUED),
    runs.c.held_by.is_(None),
    runs.c.touched <= bindparam("b_based_on"),
)
_START_RUN = RawStatement(
    update(runs)
    .where(runs.c.id == bindparam("b_id"), runs.c.phase == str(RunPhase.QUEUED))
    .values(
        phase=str(checked_transition(RunPhase.QUEUED, RunPhase.STARTING)),
        attempts=bindparam("b_attempts"),
        touched=bindparam("b_touched"),
    )
)
_PREEMPT_ATTEMPT = update(attempts).where(attempts.c.id == bindparam("b_id"))
_INSERT_ATTEMPT = RawStatement(attempts.insert())
_INSERT_EVENT = run_events.insert()
_CHANGED_AFTER_PLANNING = "reservations or queues were changed after the plan was made"


class _PendingRow(NamedTuple):
    """A waiting run; `gang` holds the columns for `to_gang`."""

    gang: Sequence[Any]
    phase: str
    attempts: int
    resume_step: int | None
    started_at: int | None
    max_attempts: int
    losses: int
    refusals: int
    held_by: str | None
    changed: bool


class PlanApplier:
    """Applies one plan at `now` (microseconds). The caller has checked the lease."""

    def __init__(self, conn: Connection, state: WriterState, holds: HoldRows, now: int) -> None:
        self._conn, self._state, self._holds, self._now = conn, state, holds, now
        self._stamp: WriteStamp = state.refresh(conn)
        self._events: list[dict[str, Any]] = []

    def apply(self, plan: PlanRecord) -> PlanResult:
        marks = self._stamp.before
        if max(marks.reservations, marks.queues) > plan.based_on:
            return PlanResult(
                (),
                {placement.gang.id: _CHANGED_AFTER_PLANNING for placement in plan.place},
                self._stamp.write(),
            )
        started, rejected = self._start_runs(plan.place) if plan.place else ([], {})
        changes = AttemptChanges(self._conn, self._state, self._stamp, self._now)
        preempted = self._preempt_runs(plan, changes)
        started_gangs = {GangId(attempt.run) for attempt in started}
        self._replace_promises(
            [promise for promise in plan.promises if promise.gang not in started_gangs],
            plan.breaches,
            plan.based_on,
        )
        if self._events:
            self._conn.execute(_INSERT_EVENT, self._events)
        changes.write()
        return PlanResult(
            tuple(GangId(attempt.run) for attempt in started),
            rejected,
            self._stamp.write(),
            attempts=tuple(attempt.id for attempt in started),
            preempted=tuple(preempted),
        )

    def request_preempt(self, attempt: AttemptId, reason: str) -> AttemptChanges:
        """Requests a preemption outside of any plan, for no particular gang."""
        changes = AttemptChanges(self._conn, self._state, self._stamp, self._now)
        self._preempt_attempt(self._state.attempts[attempt], GangId(""), reason, changes)
        self._conn.execute(_INSERT_EVENT, self._events)
        return changes

    # -- placements ------------------------------------------------------------------------------------------

    def _start_runs(self, placements: Sequence[Placement]) -> tuple[list[LiveAttempt], dict[GangId, str]]:
        waiting = self._read_pending([placement.gang.id for placement in placements])
        steps = newest_steps(self._conn, [RunId(run) for run, row in waiting.items() if row.attempts])
        new_rows: list[dict[str, Any]] = []
        started: list[LiveAttempt] = []
        rejected: dict[GangId, str] = {}
        for planned in placements:
            row = waiting.pop(planned.gang.id, None)
            if row is None:
                rejected[planned.gang.id] = "it no longer waits"
                continue
            gang = to_gang(row.gang)
            if row.changed and differs_from_plan(planned.gang, gang):
                rejected[gang.id] = CHANGED_AFTER_PLANNING
                continue
            placement = Placement(
                gang.with_replica_counts(_replica_counts(gang, planned.gang)), planned.assignments
            )
            reason = self._allocate_or_reason(placement)
            if reason is not None:
                rejected[gang.id] = reason
                continue
            attempt = self._make_attempt(row, gang, placement)
            started.append(attempt)
            new_rows.append(
                _attempt_row(
                    attempt,
                    number=row.attempts + 1,
                    step=steps.get(attempt.run, row.resume_step),
                    stamp=self._stamp,
                )
            )
        if new_rows:
            self._write_started(new_rows)
        return started, rejected

    def _allocate_or_reason(self, placement: Placement) -> str | None:
        """Allocates the placement; returns the reason if it does not fit, else None."""
        gang, live = placement.gang, self._state
        reason = live.node_allocations.allocate(placement)
        if reason is None:
            reason = live.quota_check.find_violation(
                gang.queue, gang.user, placed_amounts(placement, live.nodes)
            )
            if reason is not None:
                live.node_allocations.count(placement, -1)
        return reason

    def _make_attempt(self, row: _PendingRow, gang: Gang, placement: Placement) -> LiveAttempt:
        engine = self._state.nodes[placement.assignments[0].node].engine
        attempt = LiveAttempt(
            attempt_id(RunId(gang.id), row.attempts + 1),
            RunId(gang.id),
            gang,
            placement,
            engine,
            AttemptPhase.STARTING,
            (),
            self._now,
            None,
            None,
            None,
            None,
            RunPhase.STARTING,
            row.started_at,
            False,
            row.max_attempts,
            row.losses,
            row.refusals,
        )
        self._state.add_allocated(attempt)
        return attempt

    def _write_started(self, started: list[dict[str, Any]]) -> None:
        _INSERT_ATTEMPT.execute_many(self._conn, started)
        _START_RUN.execute_many(
            self._conn,
            [
                {"b_id": row["run"], "b_attempts": row["number"], "b_touched": self._stamp.now}
                for row in started
            ],
        )
        self._holds.delete(self._conn, [row["run"] for row in started])
        self._stamp.touch("runs", "attempts")

    def _read_pending(self, gangs: Sequence[GangId]) -> dict[str, _PendingRow]:
        rows = (
            _PendingRow(row[:GANG_COLUMN_COUNT], *row[GANG_COLUMN_COUNT:])
            for row in _SELECT_PENDING.fetch_all(self._conn, gangs)
        )
        return {row.gang[0]: row for row in rows if row.phase == RunPhase.QUEUED and row.held_by is None}

    # -- preemptions -----------------------------------------------------------------------------------------

    def _preempt_runs(self, plan: PlanRecord, changes: AttemptChanges) -> list[AttemptId]:
        preempted: list[AttemptId] = []
        waiting = self._find_unchanged(
            {preemption.for_gang for preemption in plan.preempt if preemption.for_gang}, plan.based_on
        )
        for preemption in plan.preempt:
            attempt = self._state.attempts.get(preemption.attempt)
            if attempt is None or attempt.phase is AttemptPhase.STOPPING or not attempt.gang.preemptible:
                continue
            if preemption.for_gang and preemption.for_gang not in waiting:
                continue
            self._preempt_attempt(attempt, preemption.for_gang, preemption.reason, changes)
            preempted.append(attempt.id)
        return preempted

    def _preempt_attempt(
        self, attempt: LiveAttempt, for_gang: GangId, reason: str, changes: AttemptChanges
    ) -> None:
        attempt.preempted_for = for_gang
        changes.apply(attempt, attempt_transitions.request_stop(attempt.to_attempt_state()))
        self._conn.execute(
            _PREEMPT_ATTEMPT, {"b_id": attempt.id, "preempted_for": for_gang, "preempt_reason": reason}
        )
        self._record_event(attempt.run, RunEventKind.PREEMPTED, reason)

    # -- promises --------------------------------------------------------------------------------------------

    def _replace_promises(
        self, planned: Sequence[Promise], breaches: Sequence[BreachRecord], based_on: Version
    ) -> None:
        before = self._state.promises
        after = {promise.gang: promise for promise in planned}
        if after == before and not breaches:
            return
        waiting = self._find_unchanged(
            [*(gang for gang in after if gang not in before), *(breach.gang for breach in breaches)], based_on
        )
        after = {gang: promise for gang, promise in after.items() if gang in before or gang in waiting}
        for breach in breaches:
            if breach.gang in waiting:
                self._record_event(
                    RunId(breach.gang), RunEventKind.BREACHED, f"{breach.cause}: {breach.detail}"
                )
        broken = {breach.gang for breach in breaches}
        for gang, promise in after.items():
            if gang not in before or gang in broken:
                self._record_event(
                    RunId(gang),
                    RunEventKind.PROMISED,
                    f"starts at {promise.start_at:%Y-%m-%d %H:%M:%S} UTC or earlier",
                )
        if replace_promises(self._conn, before, after):
            self._state.promises = after
            self._stamp.touch("promises")

    def _find_unchanged(self, gangs: Collection[GangId], based_on: Version) -> set[GangId]:
        """Returns the gangs that still wait as in the plan's snapshot. A plan decides nothing for a gang that
        was changed, held or started since."""
        unchanged: set[GangId] = set()
        ids = list(gangs)
        for start in range(0, len(ids), IDS_PER_QUERY):
            values = {"b_ids": ids[start : start + IDS_PER_QUERY], "b_based_on": based_on}
            unchanged.update(self._conn.execute(_SELECT_UNCHANGED, values).scalars())
        return unchanged

    def _record_event(self, run: RunId, kind: RunEventKind, detail: str) -> None:
        self._events.append({"run": run, "at": self._now, "kind": str(kind), "detail": detail})


def _replica_counts(gang: Gang, planned: Gang) -> list[int]:
    """Returns the number of replicas of each role to start: the planned number if the gang is elastic, else
    the requested number."""
    if len(planned.roles) != len(gang.roles):
        return [role.replicas for role in gang.roles]
    pairs = zip(gang.roles, planned.roles, strict=True)
    return [
        min(max(planned_role.replicas, role.required_replicas), role.replicas) for role, planned_role in pairs
    ]


def _attempt_row(attempt: LiveAttempt, *, number: int, step: int | None, stamp: WriteStamp) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "run": attempt.run,
        "number": number,
        "phase": str(attempt.phase),
        "live": 1,
        "engine": attempt.engine,
        "placement": encode_placement(attempt.placement.assignments),
        "counts": encode_counts([role.replicas for role in attempt.placement.gang.roles])
        if attempt.gang.is_elastic
        else None,
        "replicas": "[]",
        "placed_at": attempt.placed_at,
        "resumed_from_step": step,
        "touched": stamp.now,
    }
