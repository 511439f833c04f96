"""Committing a plan: each gang is checked once more against the truth of this moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from hopyard.domain import attempt_news
from hopyard.domain.amounts import placed
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.cluster import Breach, Plan, PlanResult, Promise
from hopyard.domain.gang import CHANGED_SINCE, Gang, Placement, is_other
from hopyard.domain.ids import AttemptId, GangId, RunId, Version, attempt_id
from hopyard.domain.run import RunEventKind, RunPhase, moved
from hopyard.stores.sql.attempt_rows import Changes
from hopyard.stores.sql.checkpoint_rows import newest_steps
from hopyard.stores.sql.codec import encode_counts, encode_placement
from hopyard.stores.sql.gang_rows import GANG_COLUMNS, WIDTH, to_gang
from hopyard.stores.sql.hold_rows import HoldRows
from hopyard.stores.sql.hot import ByIds, Hot
from hopyard.stores.sql.live import Live
from hopyard.stores.sql.live_rows import LiveAttempt
from hopyard.stores.sql.marks import Stamp
from hopyard.stores.sql.promise_rows import replace_promises
from hopyard.stores.sql.tables import IDS_PER_QUERY, attempts, run_events, runs

# By id alone: asked for its phase too, SQLite looks at all that wait.
_WAITING = ByIds(
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
_UNCHANGED = select(runs.c.id).where(
    runs.c.id.in_(bindparam("b_ids", expanding=True)),
    runs.c.phase == str(RunPhase.QUEUED),
    runs.c.held_by.is_(None),
    runs.c.touched <= bindparam("b_based_on"),
)
_START = Hot(
    update(runs)
    .where(runs.c.id == bindparam("b_id"), runs.c.phase == str(RunPhase.QUEUED))
    .values(
        phase=str(moved(RunPhase.QUEUED, RunPhase.STARTING)),
        attempts=bindparam("b_attempts"),
        touched=bindparam("b_touched"),
    )
)
_PREEMPT = update(attempts).where(attempts.c.id == bindparam("b_id"))
_ATTEMPT_INSERT = Hot(attempts.insert())
_EVENT_INSERT = run_events.insert()
_CHANGED = "reservations or queues were changed after this was planned"


class _Waiting(NamedTuple):
    """A run that waits; `gang` as `to_gang` takes it."""

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


class Applying:
    """One plan, at `now` (microseconds). The lease was looked at before."""

    def __init__(self, conn: Connection, live: Live, holds: HoldRows, now: int) -> None:
        self._conn, self._live, self._holds, self._now = conn, live, holds, now
        self._stamp: Stamp = live.refresh(conn)
        self._events: list[dict[str, Any]] = []

    def apply(self, plan: Plan) -> PlanResult:
        marks = self._stamp.before
        if max(marks.reservations, marks.queues) > plan.based_on:
            return PlanResult(
                (), {placement.gang.id: _CHANGED for placement in plan.place}, self._stamp.write()
            )
        started, rejected = self._place(plan.place) if plan.place else ([], {})
        changes = Changes(self._conn, self._live, self._stamp, self._now)
        preempted = self._preempt(plan, changes)
        gone = {GangId(one.run) for one in started}
        self._promise([one for one in plan.promises if one.gang not in gone], plan.breaches, plan.based_on)
        if self._events:
            self._conn.execute(_EVENT_INSERT, self._events)
        changes.finish()
        return PlanResult(
            tuple(GangId(one.run) for one in started),
            rejected,
            self._stamp.write(),
            attempts=tuple(one.id for one in started),
            preempted=tuple(preempted),
        )

    def request_preempt(self, attempt: AttemptId, reason: str) -> Changes:
        """Outside of any plan, for nobody in particular."""
        changes = Changes(self._conn, self._live, self._stamp, self._now)
        self._preempt_one(self._live.attempts[attempt], GangId(""), reason, changes)
        self._conn.execute(_EVENT_INSERT, self._events)
        return changes

    # -- placing
    # ------------------------------------------------------------------------------------------------------

    def _place(self, wanted: Sequence[Placement]) -> tuple[list[LiveAttempt], dict[GangId, str]]:
        waiting = self._waiting([placement.gang.id for placement in wanted])
        steps = newest_steps(self._conn, [RunId(run) for run, row in waiting.items() if row.attempts])
        fresh: list[dict[str, Any]] = []
        started: list[LiveAttempt] = []
        rejected: dict[GangId, str] = {}
        for asked in wanted:
            row = waiting.pop(asked.gang.id, None)
            if row is None:
                rejected[asked.gang.id] = "it no longer waits"
                continue
            gang = to_gang(row.gang)
            if row.changed and is_other(asked.gang, gang):
                rejected[gang.id] = CHANGED_SINCE
                continue
            placement = Placement(gang.sized(_counts(gang, asked.gang)), asked.assignments)
            reason = self._refusal(placement)
            if reason is not None:
                rejected[gang.id] = reason
                continue
            attempt = self._begin(row, gang, placement)
            started.append(attempt)
            fresh.append(
                _attempt_row(
                    attempt,
                    number=row.attempts + 1,
                    step=steps.get(attempt.run, row.resume_step),
                    stamp=self._stamp,
                )
            )
        if fresh:
            self._write_started(fresh)
        return started, rejected

    def _refusal(self, placement: Placement) -> str | None:
        """Why it may not start now; None when it may, and then its place on the nodes is taken."""
        gang, live = placement.gang, self._live
        reason = live.holdings.take(placement)
        if reason is None:
            reason = live.charges.refusal(gang.queue, gang.user, placed(placement, live.nodes))
            if reason is not None:
                live.holdings.hold(placement, -1)
        return reason

    def _begin(self, row: _Waiting, gang: Gang, placement: Placement) -> LiveAttempt:
        engine = self._live.nodes[placement.assignments[0].node].engine
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
        self._live.put_taken(attempt)
        return attempt

    def _write_started(self, fresh: list[dict[str, Any]]) -> None:
        _ATTEMPT_INSERT.change(self._conn, fresh)
        _START.change(
            self._conn,
            [
                {"b_id": row["run"], "b_attempts": row["number"], "b_touched": self._stamp.now}
                for row in fresh
            ],
        )
        self._holds.drop(self._conn, [row["run"] for row in fresh])
        self._stamp.touch("runs", "attempts")

    def _waiting(self, gangs: Sequence[GangId]) -> dict[str, _Waiting]:
        found = (_Waiting(row[:WIDTH], *row[WIDTH:]) for row in _WAITING.rows(self._conn, gangs))
        return {row.gang[0]: row for row in found if row.phase == RunPhase.QUEUED and row.held_by is None}

    # -- making room
    # --------------------------------------------------------------------------------------------------

    def _preempt(self, plan: Plan, changes: Changes) -> list[AttemptId]:
        asked: list[AttemptId] = []
        waiting = self._unchanged({one.for_gang for one in plan.preempt if one.for_gang}, plan.based_on)
        for one in plan.preempt:
            found = self._live.attempts.get(one.attempt)
            if found is None or found.phase is AttemptPhase.STOPPING or not found.gang.preemptible:
                continue
            if one.for_gang and one.for_gang not in waiting:
                continue
            self._preempt_one(found, one.for_gang, one.reason, changes)
            asked.append(found.id)
        return asked

    def _preempt_one(self, found: LiveAttempt, for_gang: GangId, reason: str, changes: Changes) -> None:
        found.preempted_for = for_gang
        changes.make(found, attempt_news.stop(found.before()))
        self._conn.execute(_PREEMPT, {"b_id": found.id, "preempted_for": for_gang, "preempt_reason": reason})
        self._tell(found.run, RunEventKind.PREEMPTED, reason)

    # -- promises
    # -----------------------------------------------------------------------------------------------------

    def _promise(self, wanted: Sequence[Promise], breaches: Sequence[Breach], based_on: Version) -> None:
        before = self._live.promises
        after = {one.gang: one for one in wanted}
        if after == before and not breaches:
            return
        waiting = self._unchanged(
            [*(gang for gang in after if gang not in before), *(one.gang for one in breaches)], based_on
        )
        after = {gang: one for gang, one in after.items() if gang in before or gang in waiting}
        for breach in breaches:
            if breach.gang in waiting:
                self._tell(RunId(breach.gang), RunEventKind.BREACHED, f"{breach.cause}: {breach.detail}")
        broken = {breach.gang for breach in breaches}
        for gang, promise in after.items():
            if gang not in before or gang in broken:
                self._tell(
                    RunId(gang),
                    RunEventKind.PROMISED,
                    f"starts at {promise.start_at:%Y-%m-%d %H:%M:%S} UTC or earlier",
                )
        if replace_promises(self._conn, before, after):
            self._live.promises = after
            self._stamp.touch("promises")

    def _unchanged(self, gangs: Collection[GangId], based_on: Version) -> set[GangId]:
        """Those that wait as they did when the plan was made.
        For one that was changed, held or started since, it decides nothing."""
        found: set[GangId] = set()
        wanted = list(gangs)
        for at in range(0, len(wanted), IDS_PER_QUERY):
            values = {"b_ids": wanted[at : at + IDS_PER_QUERY], "b_based_on": based_on}
            found.update(self._conn.execute(_UNCHANGED, values).scalars())
        return found

    def _tell(self, run: RunId, kind: RunEventKind, detail: str) -> None:
        self._events.append({"run": run, "at": self._now, "kind": str(kind), "detail": detail})


def _counts(gang: Gang, planned: Gang) -> list[int]:
    """How many replicas of each role are to start: what the plan says where the gang leaves a choice, else
    what it asks for."""
    if len(planned.roles) != len(gang.roles):
        return [role.replicas for role in gang.roles]
    pairs = zip(gang.roles, planned.roles, strict=True)
    return [min(max(wanted.replicas, role.fewest), role.replicas) for role, wanted in pairs]


def _attempt_row(attempt: LiveAttempt, *, number: int, step: int | None, stamp: Stamp) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "run": attempt.run,
        "number": number,
        "phase": str(attempt.phase),
        "live": 1,
        "engine": attempt.engine,
        "placement": encode_placement(attempt.placement.assignments),
        "counts": encode_counts([role.replicas for role in attempt.placement.gang.roles])
        if attempt.gang.elastic
        else None,
        "replicas": "[]",
        "placed_at": attempt.placed_at,
        "resumed_from_step": step,
        "touched": stamp.now,
    }
