"""Adds the URL of each server for the other servers, and the key of their requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("url", "key"):
        op.add_column("servers", sa.Column(name, sa.Text(), nullable=False, server_default=""))
