"""Creates the tables of runs, attempts, checkpoints, datasets and access."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# A migration keeps its own types: `tables.py` changes later, a migration that has run does not.
KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", KEY, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "datasets",
        sa.Column("name", KEY, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("higher_is_better", sa.Boolean()),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", KEY, nullable=False),
        sa.Column("engine", KEY, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "run_numbers",
        sa.Column("user_name", KEY, nullable=False),
        sa.Column("project", KEY, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_name", "project"),
    )
    op.create_table(
        "runs",
        sa.Column("id", KEY, nullable=False),
        sa.Column("user_name", KEY, nullable=False),
        sa.Column("project", KEY, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("label", KEY, nullable=False),
        sa.Column("phase", KEY, nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("queue", KEY, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("gang", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("resume_step", sa.BigInteger()),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("offline", sa.Boolean(), nullable=False),
        sa.Column("exit", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("user_name", "project", "number", name="runs_name"),
    )
    op.create_index("runs_newest", "runs", ["submitted_at", "id"], unique=False)
    op.create_index("runs_phase", "runs", ["phase", "submitted_at"], unique=False)
    op.create_table(
        "secrets",
        sa.Column("name", KEY, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tokens",
        sa.Column("hash", KEY, nullable=False),
        sa.Column("user_name", KEY, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", KEY, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", KEY, nullable=False),
        sa.Column("live", sa.SmallInteger(), nullable=False),
        sa.Column("engine", KEY, nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("replicas", sa.Text(), nullable=False),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("exit", sa.Text()),
        sa.Column("resumed_from_step", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "number", name="attempts_number"),
    )
    op.create_index(
        "attempts_live",
        "attempts",
        ["live"],
        unique=False,
        sqlite_where=sa.text("live = 1"),
        postgresql_where=sa.text("live = 1"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("attempt", KEY, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("manifest", KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("offsets", sa.Text(), nullable=False),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "attempt", "rank", "step", name="checkpoints_step"),
    )
    op.create_table(
        "dataset_versions",
        sa.Column("dataset", KEY, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("manifest", KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", KEY, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["dataset"], ["datasets.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("dataset", "number"),
    )
    op.create_table(
        "holds",
        sa.Column("run", KEY, nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("reason", KEY, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "run_contents",
        sa.Column("run", KEY, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("fingerprint", KEY, nullable=False),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("latest", sa.Text(), nullable=False),
        sa.Column("code", KEY),
        sa.Column("resume_manifest", KEY),
        sa.Column("artifact", KEY),
        sa.Column("requirements", KEY),
        sa.Column("lock", KEY),
        sa.Column("git_diff", KEY),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "run_datasets",
        sa.Column("run", KEY, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("dataset", KEY, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("manifest", KEY),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "position"),
    )
    op.create_index("run_datasets_dataset", "run_datasets", ["dataset"], unique=False)
    op.create_table(
        "run_tags",
        sa.Column("run", KEY, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("value", KEY, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "key"),
    )
    op.create_index("run_tags_value", "run_tags", ["key", "value"], unique=False)
    counters = sa.table("counters", sa.column("name", sa.Text), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": "version", "value": 0}, {"name": "hold_base", "value": 0}])
