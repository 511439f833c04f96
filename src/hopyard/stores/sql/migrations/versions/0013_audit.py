"""Adds the audit log. Earlier changes are unknown."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("user_name", _key, nullable=False),
        sa.Column("action", _key, nullable=False),
        sa.Column("target", _key, nullable=False),
        sa.Column("target_id", _key, nullable=False),
        sa.Column("outcome", _key, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("token", _key, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
    )
    op.create_index("audit_at", "audit", ["at"])
    op.create_index("audit_target", "audit", ["target"])
    op.create_index("audit_target_id", "audit", ["target_id"])
    op.create_index("audit_user", "audit", ["user_name", "id"])
