"""Adds how far users have read their inboxes, and what lists them quickly."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "inbox_reads",
        sa.Column("user_name", _KEY, nullable=False, primary_key=True),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
    )
    op.create_index(
        "notifications_alerts",
        "notifications",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text("target = ''"),
        postgresql_where=sa.text("target = ''"),
    )
    op.create_index(
        "runs_ended",
        "runs",
        ["user_name", "ended_at"],
        unique=False,
        sqlite_where=sa.text("parent IS NULL"),
        postgresql_where=sa.text("parent IS NULL"),
    )
