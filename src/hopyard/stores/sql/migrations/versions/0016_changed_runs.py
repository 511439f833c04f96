"""Adds changes, holds and notes of waiting runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("runs", sa.Column("held_by", key))
    op.add_column("runs", sa.Column("changed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("run_contents", sa.Column("note", sa.Text(), nullable=False, server_default=""))
