"""Rows of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId
from hopyard.errors import NotFound
from hopyard.stores.sql.codec import decode_map, encode_map, from_us, to_us
from hopyard.stores.sql.tables import IDS_PER_QUERY
from hopyard.stores.sql.tables import checkpoints as table


def insert(conn: Connection, checkpoint: Checkpoint) -> bool:
    """Unless it is there (then False): the first word stands."""
    key = {"run": checkpoint.run, "attempt": checkpoint.attempt, "rank": checkpoint.rank, "step": checkpoint.step}
    there = select(table.c.id).where(*(table.c[name] == value for name, value in key.items()))
    if conn.execute(there).first() is not None:
        return False
    conn.execute(
        table.insert().values(
            **key,
            manifest=checkpoint.manifest,
            size_bytes=checkpoint.size_bytes,
            created_at=to_us(checkpoint.created_at),
            metrics=encode_map(checkpoint.metrics),
            offsets=encode_map(checkpoint.offsets),
            kept=checkpoint.kept,
        )
    )
    return True


def of_run(conn: Connection, run: RunId) -> list[Checkpoint]:
    return [_to_checkpoint(row) for row in conn.execute(select(table).where(table.c.run == run).order_by(table.c.id))]


def newest_steps(conn: Connection, runs: Sequence[RunId]) -> dict[RunId, int]:
    """The step of the checkpoint that each of these runs saved last, where there is one."""
    found: dict[RunId, int] = {}
    for at in range(0, len(runs), IDS_PER_QUERY):
        last = select(func.max(table.c.id)).where(table.c.run.in_(runs[at : at + IDS_PER_QUERY])).group_by(table.c.run)
        found.update(
            (RunId(run), step) for run, step in conn.execute(select(table.c.run, table.c.step).where(table.c.id.in_(last)))
        )
    return found


def keep(conn: Connection, run: RunId, step: int, kept: bool) -> None:
    """Raises NotFound when the run saved none at this step."""
    if conn.execute(update(table).where(table.c.run == run, table.c.step == step).values(kept=kept)).rowcount == 0:
        steps = conn.execute(select(table.c.step).where(table.c.run == run).order_by(table.c.id.desc()).limit(5)).scalars()
        newest = ", ".join(str(known) for known in steps)
        raise NotFound(
            f"the run has no checkpoint at step {step}", hints=(f"the newest are at {newest}" if newest else "it has saved none",)
        )


def remove(conn: Connection, run: RunId, steps: Sequence[int]) -> None:
    if steps:
        conn.execute(delete(table).where(table.c.run == run, table.c.step.in_(steps)))


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
    )
