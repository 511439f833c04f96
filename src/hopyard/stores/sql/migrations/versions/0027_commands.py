"""Adds commands of users to live runs, and since when a run is paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("paused_at", sa.BigInteger()))
    op.create_table(
        "commands",
        sa.Column(
            "run", _KEY, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=True
        ),
        sa.Column("number", sa.Integer(), nullable=False, primary_key=True, autoincrement=False),
        sa.Column("kind", _KEY, nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("user_name", _KEY, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("attempt", _KEY),
        sa.Column("step", sa.BigInteger()),
        sa.Column("answer", sa.Text(), nullable=False, server_default=""),
        sa.Column("answered_at", sa.BigInteger()),
        sa.Column("changes", sa.Text(), nullable=False, server_default="{}"),
    )
    op.create_index(
        "commands_pending",
        "commands",
        ["state"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
