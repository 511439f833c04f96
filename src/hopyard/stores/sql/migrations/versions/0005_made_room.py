"""Records with a promise whether runs were preempted for it. Before, only a start soon after the promise's
date showed this."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SOON_US = 61_000_000  # all other promises have a start at least this long after their date


def upgrade() -> None:
    op.add_column("promises", sa.Column("made_room", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(sa.text(f"UPDATE promises SET made_room = true WHERE start_at - given_at < {SOON_US}"))
