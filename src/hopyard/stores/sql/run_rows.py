"""Rows of a run and its newest attempt, as the nouns of the domain."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, Select, and_, select

from hopyard.domain.ids import AttemptId, Digest, RunId, RunName
from hopyard.domain.run import Attempt, Run, RunPhase
from hopyard.stores.sql.codec import decode_exit, decode_map, decode_placement, decode_spec, from_us, from_us_or_none
from hopyard.stores.sql.tables import attempts, counters, holds, run_contents, runs

ATTEMPT_COLUMNS = tuple(
    attempts.c[name].label(f"attempt_{name}")
    for name in (
        "id",
        "number",
        "phase",
        "engine",
        "placement",
        "placed_at",
        "started_at",
        "ended_at",
        "exit",
        "resumed_from_step",
    )
)
_HOLD_BASE = select(counters.c.value).where(counters.c.name == "hold_base").scalar_subquery()


def select_runs() -> Select[Any]:
    """All that `to_run` reads; to be narrowed, ordered and limited by the caller."""
    return (
        select(
            runs,
            run_contents.c.spec,
            run_contents.c.params,
            run_contents.c.summary,
            run_contents.c.artifact,
            (holds.c.rank - _HOLD_BASE).label("position"),
            holds.c.reason.label("hold_reason"),
            holds.c.detail.label("hold_detail"),
            *ATTEMPT_COLUMNS,
        )
        .join(run_contents, run_contents.c.run == runs.c.id)
        .outerjoin(holds, holds.c.run == runs.c.id)
        .outerjoin(attempts, and_(attempts.c.run == runs.c.id, attempts.c.number == runs.c.attempts))
    )


def to_run(row: Row[Any]) -> Run:
    return Run(
        id=RunId(row.id),
        name=RunName(row.user_name, row.project, row.number),
        spec=decode_spec(row.spec),
        phase=RunPhase(row.phase),
        submitted_at=from_us(row.submitted_at),
        attempt=None if row.attempt_id is None else to_attempt(row),
        started_at=from_us_or_none(row.started_at),
        ended_at=from_us_or_none(row.ended_at),
        exit=decode_exit(row.exit),
        params=decode_map(row.params),
        summary=decode_map(row.summary),
        artifact=None if row.artifact is None else Digest(row.artifact),
        stop_requested=row.stop_requested,
        hold_reason=row.hold_reason or "",
        hold_detail=row.hold_detail or "",
        position=row.position,
        offline=row.offline,
    )


def to_attempt(row: Row[Any]) -> Attempt:
    """The attempt in the columns ATTEMPT_COLUMNS."""
    places = decode_placement(row.attempt_placement)
    return Attempt(
        id=AttemptId(row.attempt_id),
        number=row.attempt_number,
        phase=row.attempt_phase,
        nodes=tuple(node for node, _ in places),
        gpus=tuple(gpus for _, gpus in places),
        engine=row.attempt_engine,
        placed_at=from_us(row.attempt_placed_at),
        started_at=from_us_or_none(row.attempt_started_at),
        ended_at=from_us_or_none(row.attempt_ended_at),
        exit=decode_exit(row.attempt_exit),
        resumed_from_step=row.attempt_resumed_from_step,
    )
