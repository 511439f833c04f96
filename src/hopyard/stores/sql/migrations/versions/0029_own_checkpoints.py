"""Adds the path of checkpoints that a script saved itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("checkpoints") as table:
        table.add_column(sa.Column("path", sa.Text(), nullable=False, server_default=""))
        table.drop_constraint("checkpoints_step", type_="unique")
        table.create_unique_constraint("checkpoints_path", ["run", "attempt", "rank", "step", "path"])
