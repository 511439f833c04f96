"""Adds the browser, address and last use of sessions, the revision of saved views, and the description of
datasets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("browser", "address"):
        op.add_column("web_sessions", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column("web_sessions", sa.Column("used_at", sa.BigInteger()))
    op.add_column(
        "saved_views", sa.Column("revision", sa.BigInteger(), nullable=False, server_default=sa.text("1"))
    )
    op.add_column("datasets", sa.Column("description", sa.Text(), nullable=False, server_default=""))
    op.add_column(
        "datasets",
        sa.Column("description_revision", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
