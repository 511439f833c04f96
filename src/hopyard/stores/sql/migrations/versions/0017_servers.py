"""Adds the servers that share the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "servers",
        sa.Column("engine", key, primary_key=True),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
    )
