"""Converts rows of a run and its newest attempt to domain objects."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, case, func, select

from hopyard.domain.ids import AttemptId, Digest, RunId, RunName
from hopyard.domain.run import HELD_REASON, Attempt, Run, RunPhase, held_message, shown_phase
from hopyard.domain.spec_summary import summarise_spec, truncate_values
from hopyard.stores.sql.codec import (
    GangRequest,
    decode_counts,
    decode_exit,
    decode_gang_request,
    decode_map,
    decode_placement,
    decode_spec,
    decode_words,
    from_us,
    from_us_or_none,
)
from hopyard.stores.sql.hold_rows import BASE_COUNTER_PREFIX
from hopyard.stores.sql.tables import attempts, counters, holds, promises, run_contents, runs

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
        "counts",
        "saved_at",
        "preempted_for",
        "preempt_reason",
    )
)
# as `domain.run.shown_phase`
SHOWN_PHASE: ColumnElement[str] = case(
    (and_(runs.c.phase == str(RunPhase.RUNNING), runs.c.paused_at.is_not(None)), str(RunPhase.PAUSED)),
    else_=runs.c.phase,
).label("phase")
_HOLD_BASE = func.coalesce(
    select(counters.c.value).where(counters.c.name == BASE_COUNTER_PREFIX + runs.c.queue).scalar_subquery(), 0
)
HOLD_POSITION: ColumnElement[int | None] = (holds.c.rank - _HOLD_BASE).label("position")


# All columns that `to_run` reads; callers filter, order and limit it.
SELECT_RUNS: Select[Any] = (
    select(
        runs,
        run_contents.c.spec,
        run_contents.c.params,
        run_contents.c.summary,
        run_contents.c.artifact,
        run_contents.c.run_folder,
        run_contents.c.run_folder_bytes,
        run_contents.c.note,
        run_contents.c.unstored,
        HOLD_POSITION,
        holds.c.reason.label("hold_reason"),
        holds.c.detail.label("hold_detail"),
        holds.c.blocked_by,
        holds.c.expected_at,
        promises.c.start_at.label("promised_at"),
        *ATTEMPT_COLUMNS,
    )
    .join(run_contents, run_contents.c.run == runs.c.id)
    .outerjoin(holds, holds.c.run == runs.c.id)
    .outerjoin(promises, promises.c.run == runs.c.id)
    .outerjoin(attempts, and_(attempts.c.run == runs.c.id, attempts.c.number == runs.c.attempts))
)
# The same with brief specs for listings: full specs may take megabytes to read and decode.
SELECT_BRIEF_RUNS = SELECT_RUNS.with_only_columns(
    *(
        func.coalesce(run_contents.c.brief, run_contents.c.spec).label("spec")
        if column.key == "spec"
        else column
        for column in SELECT_RUNS.selected_columns
    )
)
# Built once: most of the time of a query that is built again goes into building it.
RUNS_OF_IDS = SELECT_RUNS.where(runs.c.id.in_(bindparam("b_ids", expanding=True)))
BRIEF_RUNS_OF_IDS = SELECT_BRIEF_RUNS.where(runs.c.id.in_(bindparam("b_ids", expanding=True)))
RUN_OF_ID = SELECT_RUNS.where(runs.c.id == bindparam("b_id"))
RUN_OF_NAME = SELECT_RUNS.where(
    runs.c.user_name == bindparam("b_user"),
    runs.c.project == bindparam("b_project"),
    runs.c.number == bindparam("b_number"),
)
ATTEMPTS_OF_RUN = (
    select(*ATTEMPT_COLUMNS).where(attempts.c.run == bindparam("b_id")).order_by(attempts.c.number)
)

# A row looks up each name; for many columns, that takes longer than everything else.
_Columns: Any = namedtuple("_Columns", SELECT_RUNS.selected_columns.keys())  # type: ignore[misc]


def to_run(run_row: Row[Any], *, brief: bool = False) -> Run:
    """Converts a row of SELECT_RUNS, or of SELECT_BRIEF_RUNS for a brief run."""
    row: Any = _Columns._make(run_row)
    spec, params, summary = decode_spec(row.spec), decode_map(row.params), decode_map(row.summary)
    if brief:  # also for runs stored before brief specs existed
        spec, params, summary = summarise_spec(spec), truncate_values(params), truncate_values(summary)
    is_held = row.held_by is not None and row.phase == RunPhase.QUEUED
    phase = shown_phase(RunPhase(row.phase), is_paused=row.paused_at is not None)
    return Run(
        id=RunId(row.id),
        name=RunName(row.user_name, row.project, row.number),
        spec=spec,
        phase=phase,
        submitted_at=from_us(row.submitted_at),
        attempt=None if row.attempt_id is None else to_attempt(row, decode_gang_request(row.gang)),
        started_at=from_us_or_none(row.started_at),
        ended_at=from_us_or_none(row.ended_at),
        exit=decode_exit(row.exit),
        params=params,
        summary=summary,
        run_folder=None if row.run_folder is None else Digest(row.run_folder),
        run_folder_bytes=row.run_folder_bytes,
        artifact=None if row.artifact is None else Digest(row.artifact),
        stop_requested=row.stop_requested,
        hold_reason=HELD_REASON if is_held else row.hold_reason or "",
        hold_detail=held_message(row.held_by) if is_held else row.hold_detail or "",
        position=row.position,
        blocked_by=decode_words(row.blocked_by or "[]"),
        expected_at=from_us_or_none(row.expected_at),
        promised_at=from_us_or_none(row.promised_at),
        preemptions=row.preemptions,
        served_s=row.served_us / 1_000_000,
        offline=row.offline,
        synced_at=from_us_or_none(row.synced_at),
        held_by=row.held_by if is_held else None,
        note=row.note,
        archived=bool(row.archived),
        paused_at=from_us_or_none(row.paused_at) if phase is RunPhase.PAUSED else None,
        unstored=decode_words(row.unstored),
    )


def to_attempt(row: Any, gang_request: GangRequest) -> Attempt:
    """Converts the columns ATTEMPT_COLUMNS of a run with this request."""
    assignments = decode_placement(row.attempt_placement)
    return Attempt(
        id=AttemptId(row.attempt_id),
        number=row.attempt_number,
        phase=row.attempt_phase,
        nodes=tuple(assignment.node for assignment in assignments),
        gpus=tuple(assignment.gpus for assignment in assignments),
        engine=row.attempt_engine,
        placed_at=from_us(row.attempt_placed_at),
        started_at=from_us_or_none(row.attempt_started_at),
        ended_at=from_us_or_none(row.attempt_ended_at),
        exit=decode_exit(row.attempt_exit),
        resumed_from_step=row.attempt_resumed_from_step,
        gpu_milli=tuple(assignment.gpu_milli for assignment in assignments),
        counts=tuple(role.replicas for role in gang_request.roles)
        if row.attempt_counts is None
        else decode_counts(row.attempt_counts),
        saved_at=from_us_or_none(row.attempt_saved_at),
        preempted_for=row.attempt_preempted_for,
        preempt_reason=row.attempt_preempt_reason,
    )
