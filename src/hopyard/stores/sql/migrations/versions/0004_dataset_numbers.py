"""Keeps the highest version number of each dataset after its deletion. Before, a dataset that was deleted and
pushed again restarted at version 1 with other data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "dataset_numbers",
        sa.Column("dataset", KEY, primary_key=True),
        sa.Column("last", sa.Integer(), nullable=False),
    )
    # For deleted datasets, runs show at least which versions existed.
    op.execute(
        sa.text(
            "INSERT INTO dataset_numbers (dataset, last) SELECT dataset, max(number) FROM ("
            "SELECT name AS dataset, last_number AS number FROM datasets"
            " UNION ALL SELECT dataset, version AS number FROM run_datasets WHERE version > 0"
            ") AS known GROUP BY dataset"
        )
    )
    op.drop_column("datasets", "last_number")
