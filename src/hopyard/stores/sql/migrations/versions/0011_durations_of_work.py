"""Deletes all durations. Durations of failed runs were included, and the table does not show which these
were."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM durations")
