"""Adds the metric by which the best checkpoint of a run is chosen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("best_by", sa.Text(), nullable=False, server_default=""))
