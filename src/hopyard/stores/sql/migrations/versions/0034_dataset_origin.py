"""Adds the version that a version of a dataset was made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dataset_versions", sa.Column("derived_from", sa.Text(), nullable=False, server_default=""))
