"""A run whose record is still being synced counts as running. Before, it counted as failed until its end was
known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("synced_at", sa.BigInteger()))
    # The arrival of the last part of their records was not stored.
    op.execute(
        "UPDATE runs SET phase = 'running', ended_at = NULL, exit = NULL WHERE offline AND attempts = "
        "0 AND phase = 'failed'"
    )
