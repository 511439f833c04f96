"""Records when the stop of an attempt was requested. It is unknown for earlier requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("asked_at", sa.BigInteger()))
