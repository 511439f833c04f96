"""Adds reports and their earlier revisions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "reports",
        sa.Column("id", _KEY, nullable=False, primary_key=True),
        sa.Column("user_name", _KEY, nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("access", _KEY, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", _KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blocks", sa.Text(), nullable=False),
    )
    op.create_index("reports_user", "reports", ["user_name"], unique=False)
    op.create_index("reports_updated", "reports", ["updated_at", "id"], unique=False)
    op.create_table(
        "report_revisions",
        sa.Column(
            "report",
            _KEY,
            sa.ForeignKey("reports.id", ondelete="CASCADE"),
            nullable=False,
            primary_key=True,
        ),
        sa.Column("revision", sa.BigInteger(), nullable=False, primary_key=True, autoincrement=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", _KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blocks", sa.Text(), nullable=False),
    )
