"""Rows of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId
from hopyard.errors import NotFound
from hopyard.stores.sql.codec import decode_map, encode_map, from_us, to_us
from hopyard.stores.sql.tables import IDS_PER_QUERY
from hopyard.stores.sql.tables import checkpoints as table

# By the number of the attempt, then in insertion order. The id of an attempt is the id of its run and its
# number, so within one run a longer id is later.
_SAVE_ORDER = (func.length(table.c.attempt), table.c.attempt, table.c.id)
_OF_HOPYARD = table.c.path == ""  # not of the script itself
_USABLE = (table.c.run.in_(bindparam("b_runs", expanding=True)), table.c.damaged.is_(False), _OF_HOPYARD)
_SELECT_STEPS = select(table.c.run, table.c.step).where(*_USABLE).order_by(table.c.run, *_SAVE_ORDER)
_SELECT_USABLE = select(table).where(*_USABLE).order_by(table.c.run, *_SAVE_ORDER)


def insert_checkpoint(conn: Connection, checkpoint: Checkpoint) -> bool:
    """Inserts a checkpoint, in the place of one of the same step that it replaces, of which it takes the mark
    as kept. Returns False if it exists already."""
    key = {
        "run": checkpoint.run,
        "attempt": checkpoint.attempt,
        "rank": checkpoint.rank,
        "step": checkpoint.step,
        "path": checkpoint.path,
    }
    same = [table.c[name] == value for name, value in key.items()]
    row = conn.execute(select(table).where(*same)).first()
    earlier = None if row is None else _to_checkpoint(row)
    if earlier is not None:
        if not checkpoint.replaces(earlier):
            return False
        conn.execute(delete(table).where(*same))
    conn.execute(
        table.insert().values(
            **key,
            manifest=checkpoint.manifest,
            size_bytes=checkpoint.size_bytes,
            created_at=to_us(checkpoint.created_at),
            metrics=encode_map(checkpoint.metrics),
            offsets=encode_map(checkpoint.offsets),
            kept=checkpoint.kept or (earlier is not None and earlier.kept),
            best_by=checkpoint.best_by,
        )
    )
    return True


def list_checkpoints(conn: Connection, run: RunId, *, damaged: bool, own: bool) -> list[Checkpoint]:
    """Returns the checkpoints of a run in order. damaged: includes damaged ones. own: includes those of the
    script itself."""
    query = select(table).where(table.c.run == run).order_by(*_SAVE_ORDER)
    query = query if damaged else query.where(table.c.damaged.is_(False))
    return [_to_checkpoint(row) for row in conn.execute(query if own else query.where(_OF_HOPYARD))]


def usable_checkpoints(conn: Connection, runs: Sequence[RunId]) -> dict[RunId, list[Checkpoint]]:
    """Returns the usable checkpoints of each of these runs that has any, in order."""
    checkpoints: dict[RunId, list[Checkpoint]] = {}
    for start in range(0, len(runs), IDS_PER_QUERY):
        for row in conn.execute(_SELECT_USABLE, {"b_runs": runs[start : start + IDS_PER_QUERY]}):
            checkpoints.setdefault(RunId(row.run), []).append(_to_checkpoint(row))
    return checkpoints


def mark_damaged(conn: Connection, run: RunId, step: int) -> bool:
    """Marks the checkpoints of this step as damaged. Returns False if no intact one existed."""
    intact = update(table).where(table.c.run == run, table.c.step == step, table.c.damaged.is_(False))
    intact = intact.where(_OF_HOPYARD)
    return conn.execute(intact.values(damaged=True)).rowcount > 0


def newest_steps(conn: Connection, runs: Sequence[RunId]) -> dict[RunId, int]:
    """Returns the step of the last checkpoint of each of these runs that has one."""
    steps: dict[RunId, int] = {}
    for start in range(0, len(runs), IDS_PER_QUERY):
        rows = conn.execute(_SELECT_STEPS, {"b_runs": runs[start : start + IDS_PER_QUERY]})
        # a later row of a run replaces an earlier one
        steps.update((RunId(run), step) for run, step in rows)
    return steps


def set_kept(conn: Connection, run: RunId, step: int, kept: bool) -> None:
    """Sets whether the checkpoint is kept. Raises NotFound if the run has none at this step."""
    if (
        conn.execute(update(table).where(table.c.run == run, table.c.step == step).values(kept=kept)).rowcount
        == 0
    ):
        latest_first = [part.desc() for part in _SAVE_ORDER]
        steps = conn.execute(
            select(table.c.step).where(table.c.run == run).order_by(*latest_first).limit(5)
        ).scalars()
        newest = ", ".join(str(saved_step) for saved_step in steps)
        raise NotFound(
            f"the run has no checkpoint at step {step}",
            hints=(f"the newest are at {newest}" if newest else "the run has no checkpoints",),
        )


def delete_checkpoints(conn: Connection, run: RunId, steps: Sequence[int], *, own: bool | None) -> None:
    """own: only those of the script itself, or only the others; None both."""
    if steps:
        chosen = delete(table).where(table.c.run == run, table.c.step.in_(steps))
        if own is not None:
            chosen = chosen.where(~_OF_HOPYARD if own else _OF_HOPYARD)
        conn.execute(chosen)


def _to_checkpoint(row: Row[Any]) -> Checkpoint:
    return Checkpoint(
        run=RunId(row.run),
        attempt=AttemptId(row.attempt),
        rank=row.rank,
        step=row.step,
        manifest=Digest(row.manifest),
        size_bytes=row.size_bytes,
        created_at=from_us(row.created_at),
        metrics=decode_map(row.metrics),
        offsets=decode_map(row.offsets),
        kept=row.kept,
        damaged=row.damaged,
        best_by=row.best_by,
        path=row.path,
    )
