"""Adds the lowest and the highest value of each metric. Older runs have none: their curves are read once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_contents", sa.Column("extremes", sa.Text(), nullable=False, server_default="{}"))
