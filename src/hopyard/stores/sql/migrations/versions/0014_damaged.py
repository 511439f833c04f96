"""Adds the mark of damaged checkpoints, which are not used again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "checkpoints", sa.Column("damaged", sa.Boolean(), nullable=False, server_default=sa.false())
    )
