"""Adds names, scopes, expiry and last use of tokens, secrets of users, and the machine environment of
runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("name", KEY, nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("scopes", sa.Text(), nullable=False, server_default="admin"))
    op.add_column("tokens", sa.Column("expires_at", sa.BigInteger()))
    op.add_column("tokens", sa.Column("used_at", sa.BigInteger()))
    op.create_table(
        "user_secrets",
        sa.Column("user_name", KEY, primary_key=True),
        sa.Column("name", KEY, primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
    )
    op.add_column("run_contents", sa.Column("machine_env", sa.Text()))
