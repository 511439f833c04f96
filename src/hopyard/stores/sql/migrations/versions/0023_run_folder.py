"""Adds the files that the next attempt of a run begins with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("run_contents", sa.Column("run_folder", _KEY))
    op.add_column(
        "run_contents", sa.Column("run_folder_bytes", sa.BigInteger(), nullable=False, server_default="0")
    )
