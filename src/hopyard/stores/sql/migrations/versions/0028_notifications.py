"""Adds notifications about runs, until they are sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column(
            "run", _KEY, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=True
        ),
        sa.Column("key", _KEY, nullable=False, primary_key=True),
        sa.Column("target", _KEY, nullable=False, primary_key=True),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("alert", sa.Text()),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
    )
    op.create_index(
        "notifications_pending",
        "notifications",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
