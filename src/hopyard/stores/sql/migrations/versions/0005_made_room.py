"""A promise says whether runs were asked to leave for it: before, that was to be seen only in how soon after
its date it was due."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SOON_US = 61_000_000  # all others were promised a start so long after their date, or later


def upgrade() -> None:
    op.add_column("promises", sa.Column("made_room", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(sa.text(f"UPDATE promises SET made_room = true WHERE start_at - given_at < {SOON_US}"))
