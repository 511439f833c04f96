"""Records which runs are studies, and the study of a trial's run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("parent", KEY))
    op.add_column("runs", sa.Column("study", sa.Boolean(), nullable=False, server_default=sa.false()))
    has_parent = sa.text("parent IS NOT NULL")
    op.create_index(
        "runs_parent", "runs", ["parent"], unique=False, sqlite_where=has_parent, postgresql_where=has_parent
    )
    is_one = sa.text("study")
    op.create_index(
        "runs_study",
        "runs",
        ["study", "submitted_at"],
        unique=False,
        sqlite_where=is_one,
        postgresql_where=is_one,
    )
    # Specs have new fields, so an equal spec has another fingerprint. Any submission with the id of an older
    # run counts as a retry.
    op.execute(sa.text("UPDATE run_contents SET fingerprint = ''"))
