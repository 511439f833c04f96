"""Adds the log of changes, archived and starred runs, and saved views."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("runs", sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "run_stars",
        sa.Column(
            "run", _KEY, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=True
        ),
        sa.Column("user_name", _KEY, nullable=False, primary_key=True),
    )
    op.create_index("run_stars_user", "run_stars", ["user_name"], unique=False)
    op.create_table(
        "saved_views",
        sa.Column("user_name", _KEY, nullable=False, primary_key=True),
        sa.Column("name", _KEY, nullable=False, primary_key=True),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("view", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("saved_views_shared", "saved_views", ["shared"], unique=False)
    op.create_table(
        "changes",
        sa.Column("seq", _SERIAL, primary_key=True),
        sa.Column("tag", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", _KEY, nullable=False),
        sa.Column("subject", _KEY, nullable=False),
        sa.Column("change", _KEY, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("frequent", sa.SmallInteger(), nullable=False),
    )
