"""Adds unreferenced uploads, so that they count towards the quota after a restart and on other servers. Also
adds the last use of trees, so that sizes of deleted trees can be removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("server", _KEY, primary_key=True),
        sa.Column("user_name", _KEY, primary_key=True),
        sa.Column("digest", _KEY, primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
    op.add_column(
        "tree_sizes", sa.Column("seen_at", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )
