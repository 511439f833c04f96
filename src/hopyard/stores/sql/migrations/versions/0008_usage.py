"""Keeps the usage of attempts after their runs are deleted. Attempts that ended before are copied."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_BATCH = 1000
_WHOLE_GPU = 1000
_ENDED = sa.text(
    "SELECT attempts.id, runs.user_name, runs.queue, runs.project, attempts.placed_at, attempts.ended_at, "
    "attempts.placement, attempts.counts, runs.gang FROM attempts JOIN runs ON runs.id = attempts.run "
    "WHERE attempts.live = 0 AND attempts.engine <> ''"
)


def upgrade() -> None:
    usage = op.create_table(
        "usage",
        sa.Column("attempt", _key, primary_key=True),
        sa.Column("user_name", _key, nullable=False),
        sa.Column("queue", _key, nullable=False),
        sa.Column("project", _key, nullable=False),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("gpu_milli", sa.BigInteger(), nullable=False),
        sa.Column("cpu_milli", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
    )
    op.create_index("usage_ended", "usage", ["ended_at"])
    conn = op.get_bind()
    rows = [_row(attempt) for attempt in conn.execute(_ENDED).mappings()]
    for at in range(0, len(rows), _BATCH):
        conn.execute(usage.insert(), rows[at : at + _BATCH])


def _row(attempt: Any) -> dict[str, Any]:
    sizes = _sizes(attempt)
    cards = [
        (len(gpus), share[0] if share else _WHOLE_GPU) for _, gpus, *share in json.loads(attempt["placement"])
    ]
    return {
        "attempt": attempt["id"],
        "user_name": attempt["user_name"],
        "queue": attempt["queue"],
        "project": attempt["project"],
        "placed_at": attempt["placed_at"],
        "ended_at": attempt["placed_at"] if attempt["ended_at"] is None else attempt["ended_at"],
        "gpu_milli": sum(count * milli for count, milli in cards),
        "cpu_milli": sum(resources["cpu_milli"] * count for resources, count in sizes),
        "memory_bytes": sum(resources["memory_bytes"] * count for resources, count in sizes),
    }


def _sizes(attempt: Any) -> list[tuple[Any, int]]:
    """Returns the request and the number of replicas of each role. The spec of a fault or another version
    yields none: it must not prevent a server from starting."""
    try:
        roles = json.loads(attempt["gang"])["roles"]
        counts = (
            [role["replicas"] for role in roles]
            if attempt["counts"] is None
            else json.loads(attempt["counts"])
        )
        return [(role["resources"], count) for role, count in zip(roles, counts, strict=True)]
    except (ValueError, KeyError, TypeError):
        return []
