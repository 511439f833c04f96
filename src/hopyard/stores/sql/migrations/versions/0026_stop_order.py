"""Adds the order by which a user stopped an attempt, for a server that is restarted meanwhile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("stop_order", sa.Text()))
