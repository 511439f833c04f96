"""Adds the names of removed users, so that no other user gets one of them later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table("former_users", sa.Column("user_name", key, primary_key=True))
    op.execute(
        "INSERT INTO former_users SELECT user_name FROM ("
        "SELECT user_name FROM run_numbers UNION SELECT created_by FROM dataset_versions UNION SELECT "
        "user_name FROM user_secrets) AS known WHERE user_name NOT IN (SELECT user_name FROM tokens)"
    )
