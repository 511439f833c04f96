"""Adds the sizes of trees, for quotas of users. Earlier trees are added when they are next used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tree_sizes",
        sa.Column("manifest", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
    )
