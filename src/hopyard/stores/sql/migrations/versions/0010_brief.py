"""Adds brief specs for listings. Earlier runs have none; theirs are computed at each read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_contents", sa.Column("brief", sa.Text()))
