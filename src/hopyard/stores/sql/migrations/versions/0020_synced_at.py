"""A run with a record that is still on its way here runs, instead of having failed until its end is known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("synced_at", sa.BigInteger()))
    # When the last part of their records came was not written down.
    op.execute(
        "UPDATE runs SET phase = 'running', ended_at = NULL, exit = NULL WHERE offline AND attempts = "
        "0 AND phase = 'failed'"
    )
