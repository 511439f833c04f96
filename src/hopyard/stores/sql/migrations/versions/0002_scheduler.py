"""Adds the tables of the scheduler: the clock of changes, the lease, queues, reservations, promises, and the
history of ended runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ROWS_AT_ONCE = 500

# Columns are added, and tables never created again: SQLite would also drop everything that refers to a
# dropped table.
COLUMNS: dict[str, list[sa.Column[Any]]] = {
    "runs": [
        sa.Column("script", sa.Text(), nullable=False, server_default=""),
        sa.Column("wants", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("losses", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("preemptions", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("served_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("touched", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    ],
    "holds": [
        sa.Column("blocked_by", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("expected_at", sa.BigInteger()),
    ],
    "attempts": [
        sa.Column("counts", sa.Text()),
        sa.Column("saved_at", sa.BigInteger()),
        sa.Column("preempted_for", KEY),
        sa.Column("preempt_reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("touched", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    ],
    "nodes": [
        sa.Column("cordoned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("touched", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    ],
}
MARKS = (
    "clock",
    "version",
    "runs",
    "attempts",
    "nodes",
    "queues",
    "reservations",
    "promises",
    "learnt",
    "removed",
)


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("runs_touched", "runs", ["touched"], unique=False)
    op.create_index("attempts_touched", "attempts", ["touched"], unique=False)
    _create_tables()
    _fill(op.get_bind())


def _create_tables() -> None:
    op.create_table(
        "promises",
        sa.Column("run", KEY, nullable=False),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("given_at", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "run_events",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("run_events_run", "run_events", ["run"], unique=False)
    op.create_table(
        "queue_tree",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tree", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "reservations",
        sa.Column("name", KEY, nullable=False),
        sa.Column("reservation", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "used",
        sa.Column("queue", KEY, nullable=False),
        sa.Column("user_name", KEY, nullable=False),
        sa.Column("share_seconds", sa.Double(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("touched", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("queue", "user_name"),
    )
    op.create_table(
        "durations",
        sa.Column("key", KEY, nullable=False),
        sa.Column("seconds", sa.LargeBinary(), nullable=False),
        sa.Column("touched", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "marks",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in MARKS),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", KEY),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _fill(conn: sa.Connection) -> None:
    version = conn.execute(sa.text("SELECT value FROM counters WHERE name = 'version'")).scalar_one()
    values = ", ".join(str(version) for _ in MARKS)
    conn.execute(sa.text(f"INSERT INTO marks (id, {', '.join(MARKS)}) VALUES (1, {values})"))
    conn.execute(sa.text("INSERT INTO lease (id, holder, epoch, expires_at) VALUES (1, NULL, 0, 0)"))
    # The next scheduling cycle writes all holds again; positions now have a base per queue.
    conn.execute(sa.text("DELETE FROM holds"))
    conn.execute(sa.text("DELETE FROM counters"))
    # Every attempt before the newest was lost, and the newest too if its run waits again.
    conn.execute(sa.text("UPDATE runs SET losses = attempts WHERE phase = 'queued'"))
    conn.execute(
        sa.text("UPDATE runs SET losses = attempts - 1 WHERE phase IN ('starting', 'running', 'stopping')")
    )
    saved = "SELECT max(created_at) FROM checkpoints WHERE checkpoints.attempt = attempts.id"
    conn.execute(sa.text(f"UPDATE attempts SET saved_at = ({saved}) WHERE live = 1"))
    # Specs have more fields now, so a retry of an old submission has another fingerprint. Such retries are
    # trusted.
    conn.execute(sa.text("UPDATE run_contents SET fingerprint = ''"))
    of_run = sa.text("UPDATE runs SET gang = :gang, script = :script, wants = :wants WHERE id = :id")
    of_contents = sa.text("UPDATE run_contents SET spec = :spec WHERE run = :id")
    for rows in _specs(conn):
        changed = [{"id": run, **_of_spec(json.loads(spec))} for run, spec in rows]
        conn.execute(
            of_run, [{name: row[name] for name in ("id", "gang", "script", "wants")} for row in changed]
        )
        conn.execute(of_contents, [{name: row[name] for name in ("id", "spec")} for row in changed])


def _specs(conn: sa.Connection) -> Iterator[list[tuple[str, str]]]:
    """Yields id and spec of all runs, by id."""
    last = ""
    query = sa.text(f"SELECT run, spec FROM run_contents WHERE run > :last ORDER BY run LIMIT {ROWS_AT_ONCE}")
    while rows := [(run, spec) for run, spec in conn.execute(query, {"last": last})]:
        yield rows
        last = rows[-1][0]


def _of_spec(spec: dict[str, Any]) -> dict[str, str]:
    """Returns a spec with a list of GPU models, and the request that a policy sees. Uses Python's JSON
    dialect, because params may be infinite."""
    for role in spec["roles"]:
        resources = role.get("resources", {})
        model = resources.pop("gpu_model", None)
        resources["gpu_models"] = [model] if model else []
    roles = [
        {name: role[name] for name in ("name", "replicas", "resources") if name in role}
        for role in spec["roles"]
    ]
    environment = spec.get("environment", {})
    keys = [
        *(ref.get("manifest") for ref in spec.get("datasets", [])),
        environment.get("lock"),
        environment.get("requirements"),
    ]
    return {
        "spec": json.dumps(spec, separators=(",", ":")),
        "gang": json.dumps({"roles": roles, "time_limit_s": spec.get("time_limit_s")}, separators=(",", ":")),
        "script": f"{spec['project']}:{_script_of(spec['roles'][0]['command'] if spec['roles'] else [])}",
        "wants": json.dumps([key for key in keys if key is not None], separators=(",", ":")),
    }


def _script_of(command: list[str]) -> str:
    for at, word in enumerate(command):
        if at and word == "-m" and at + 1 < len(command):
            return f"-m {command[at + 1]}"
        if word.endswith((".py", ".sh", ".ipynb")):
            return word
    return command[0] if command else ""
