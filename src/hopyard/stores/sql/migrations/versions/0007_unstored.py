"""Records which parts of a run could not be stored. It is unknown for earlier runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_contents", sa.Column("unstored", sa.Text(), nullable=False, server_default="[]"))
