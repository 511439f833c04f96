"""Adds the backoff of a run that its node could not start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("refusals", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.add_column("runs", sa.Column("not_before", sa.BigInteger()))
    op.add_column("runs", sa.Column("put_back", sa.Text(), nullable=False, server_default=""))
