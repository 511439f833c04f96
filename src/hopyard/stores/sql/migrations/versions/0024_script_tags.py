"""Adds the tags and the note that a script set through another library."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_contents", sa.Column("script_tags", sa.Text(), nullable=False, server_default=""))
