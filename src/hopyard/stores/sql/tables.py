"""The schema. Every change needs a migration in `migrations/versions` and a new HEAD; a test compares the
two.

Wide, rarely changed text (specs, params) is not in `runs`, whose rows change at every step of a run's life.
Holds, which may change for every waiting run at once, are separate as well: both databases rewrite the whole
row on an update. Times are integers: microseconds since 1970 in UTC. JSON is text that only this package
reads.

`touched` is the clock (table `marks`) of the last write that changed a row: a reader that knows the database
as of one clock reads the rows touched since.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

HEAD = "0035"  # the newest migration
IDS_PER_QUERY = 500  # far below the limits of both databases for one statement

metadata = MetaData()

# Compared byte by byte, as in Python and SQLite; PostgreSQL would use the collation of its cluster.
_Key = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite assigns row numbers only in a column that is declared INTEGER.
_Serial = BigInteger().with_variant(Integer(), "sqlite")


def _touched() -> Column[int]:
    return Column("touched", BigInteger, nullable=False, server_default=text("0"))


def _run_key(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "run", _Key, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=primary_key
    )


runs = Table(
    "runs",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("user_name", _Key, nullable=False),
    Column("project", _Key, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("label", _Key, nullable=False),
    Column("phase", _Key, nullable=False),
    Column("submitted_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("queue", _Key, nullable=False),
    Column("priority", Integer, nullable=False),
    # JSON: the part of a request that many runs share
    Column("gang", Text, nullable=False),
    Column("script", Text, nullable=False, server_default=""),
    Column("wants", Text, nullable=False, server_default="[]"),  # JSON
    Column("attempts", Integer, nullable=False),  # the number of the newest attempt, 0 before the first
    Column("max_attempts", Integer, nullable=False),
    # lost attempts in a row; max_attempts limits them
    Column("losses", Integer, nullable=False, server_default=text("0")),
    # attempts in a row that their nodes could not start
    Column("refusals", Integer, nullable=False, server_default=text("0")),
    Column("not_before", BigInteger),  # while it waits: the time of the next attempt
    Column("put_back", Text, nullable=False, server_default=""),  # why it waits until then
    Column("preemptions", Integer, nullable=False, server_default=text("0")),
    # how long its ended attempts ran, in microseconds
    Column("served_us", BigInteger, nullable=False, server_default=text("0")),
    Column("resume_step", BigInteger),  # of the checkpoint that a fork starts from
    Column("stop_requested", Boolean, nullable=False),
    Column("offline", Boolean, nullable=False),
    Column("exit", Text),  # JSON
    _touched(),
    Column("parent", _Key),  # the study of a trial's run, which may be deleted
    Column("study", Boolean, nullable=False, server_default=false()),
    Column("held_by", _Key),  # the user that holds it: it does not start until it is released
    Column("synced_at", BigInteger),  # of a run that was recorded offline: when its last part arrived
    # its request differs from the submitted one
    Column("changed", Boolean, nullable=False, server_default=false()),
    Column("paused_at", BigInteger),  # since when a user pauses it; counts while its phase is `running`
    Column("archived", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("user_name", "project", "number", name="runs_name"),
    Index("runs_phase", "phase", "submitted_at"),
    Index("runs_touched", "touched"),
    Index("runs_newest", "submitted_at", "id"),
    Index(
        "runs_parent",
        "parent",
        sqlite_where=text("parent IS NOT NULL"),
        postgresql_where=text("parent IS NOT NULL"),
    ),
    Index(
        "runs_ended",
        "user_name",
        "ended_at",
        sqlite_where=text("parent IS NULL"),
        postgresql_where=text("parent IS NULL"),
    ),
    Index("runs_study", "study", "submitted_at", sqlite_where=text("study"), postgresql_where=text("study")),
)

run_contents = Table(
    "run_contents",
    metadata,
    _run_key(primary_key=True),
    Column("spec", Text, nullable=False),  # JSON
    # of the submitted spec: distinguishes a retry from another run
    Column("fingerprint", _Key, nullable=False),
    Column("search", Text, nullable=False),  # lower case: name, label and tags, one per line
    Column("params", Text, nullable=False),  # JSON
    Column("summary", Text, nullable=False),  # JSON
    Column("latest", Text, nullable=False),  # JSON: metric → [step, value]
    # JSON: metric → the lowest and the highest [step, value], where they are known
    Column("extremes", Text, nullable=False, server_default="{}"),
    # JSON: sentences about parts that could not be stored
    Column("unstored", Text, nullable=False, server_default="[]"),
    Column("code", _Key),
    Column("resume_manifest", _Key),
    Column("artifact", _Key),
    Column("run_folder", _Key),
    Column("run_folder_bytes", BigInteger, nullable=False, server_default="0"),
    Column("requirements", _Key),
    Column("lock", _Key),
    Column("git_diff", _Key),
    Column("machine_env", Text),  # JSON: as in `RunStore.machine_env`
    Column("brief", Text),  # JSON: the truncated spec for listings, if it differs
    Column("note", Text, nullable=False, server_default=""),
    Column("script_tags", Text, nullable=False, server_default=""),  # JSON: what the script set
)

run_tags = Table(
    "run_tags",
    metadata,
    _run_key(primary_key=True),
    Column("key", _Key, primary_key=True),
    Column("value", _Key, nullable=False),
    Index("run_tags_value", "key", "value"),
)

run_datasets = Table(
    "run_datasets",
    metadata,
    _run_key(primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("dataset", _Key, nullable=False),
    Column("version", Integer, nullable=False),
    Column("manifest", _Key),
    Index("run_datasets_dataset", "dataset"),
)

holds = Table(
    "holds",
    metadata,
    _run_key(primary_key=True),
    Column("rank", BigInteger, nullable=False),  # position in its queue plus the counter `hold_base:QUEUE`
    Column("reason", _Key, nullable=False),
    Column("detail", Text, nullable=False),
    Column("blocked_by", Text, nullable=False, server_default="[]"),  # JSON
    Column("expected_at", BigInteger),
)

promises = Table(
    "promises",
    metadata,
    _run_key(primary_key=True),
    Column("start_at", BigInteger, nullable=False),
    Column("given_at", BigInteger, nullable=False),
    Column("nodes", Text, nullable=False),  # JSON
    Column("made_room", Boolean, nullable=False, server_default=false()),
)

run_events = Table(
    "run_events",
    metadata,
    Column("id", _Serial, primary_key=True),  # in order of arrival
    _run_key(),
    Column("at", BigInteger, nullable=False),
    Column("kind", _Key, nullable=False),
    Column("detail", Text, nullable=False),
    Index("run_events_run", "run"),
)

# Commands of users to live runs.
commands = Table(
    "commands",
    metadata,
    _run_key(primary_key=True),
    Column("number", Integer, nullable=False, primary_key=True, autoincrement=False),
    Column("kind", _Key, nullable=False),
    Column("arguments", Text, nullable=False),  # JSON
    Column("user_name", _Key, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("state", _Key, nullable=False),
    Column("attempt", _Key),  # that answered
    Column("step", BigInteger),
    Column("answer", Text, nullable=False, server_default=""),
    Column("answered_at", BigInteger),
    Column("changes", Text, nullable=False, server_default="{}"),  # JSON: parameter → [before, after]
    Index(
        "commands_pending",
        "state",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
)

# Runs that users have starred.
run_stars = Table(
    "run_stars",
    metadata,
    _run_key(primary_key=True),
    Column("user_name", _Key, primary_key=True),
    Index("run_stars_user", "user_name"),
)

# Notifications about runs. One without a target marks an alert as recorded; its time is that of the arrival.
notifications = Table(
    "notifications",
    metadata,
    _run_key(primary_key=True),
    Column("key", _Key, nullable=False, primary_key=True),
    Column("target", _Key, nullable=False, primary_key=True),
    Column("state", _Key, nullable=False),
    Column("alert", Text),  # JSON; None for the end of the run
    Column("next_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Index(
        "notifications_pending",
        "next_at",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "notifications_alerts",
        "next_at",
        sqlite_where=text("target = ''"),
        postgresql_where=text("target = ''"),
    ),
)

# How far users have read their inboxes.
inbox_reads = Table(
    "inbox_reads",
    metadata,
    Column("user_name", _Key, primary_key=True),
    Column("read_at", BigInteger, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", _Key, primary_key=True),
    _run_key(),
    Column("number", Integer, nullable=False),
    Column("phase", _Key, nullable=False),
    Column("live", SmallInteger, nullable=False),  # 1 until it has ended
    Column("engine", _Key, nullable=False),
    # JSON: [node, [gpu, …]] of each rank, and its thousandths of them unless 1000
    Column("placement", Text, nullable=False),
    Column("counts", Text),  # JSON: replicas of each role, if they differ from the request
    Column("replicas", Text, nullable=False),  # JSON: the last status of each
    Column("placed_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("exit", Text),  # JSON
    Column("resumed_from_step", BigInteger),
    Column("saved_at", BigInteger),  # of its newest checkpoint
    Column("preempted_for", _Key),  # the run for which it is preempted, "" for no particular run
    Column("preempt_reason", Text, nullable=False, server_default=""),
    Column("asked_at", BigInteger),  # when its stop was requested
    Column("stop_order", Text),  # JSON: the order of a user to stop it
    _touched(),
    UniqueConstraint("run", "number", name="attempts_number"),
    Index("attempts_touched", "touched"),
    Index("attempts_live", "live", sqlite_where=text("live = 1"), postgresql_where=text("live = 1")),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", _Serial, primary_key=True),  # in the order in which they were saved
    _run_key(),
    Column("attempt", _Key, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("manifest", _Key, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("metrics", Text, nullable=False),  # JSON
    Column("offsets", Text, nullable=False),  # JSON
    Column("kept", Boolean, nullable=False),
    Column("damaged", Boolean, nullable=False, server_default=false()),
    Column("best_by", Text, nullable=False, server_default=""),
    Column("path", Text, nullable=False, server_default=""),
    UniqueConstraint("run", "attempt", "rank", "step", "path", name="checkpoints_path"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("engine", _Key, nullable=False),
    Column("node", Text, nullable=False),  # JSON
    Column("cordoned", Boolean, nullable=False, server_default=false()),
    _touched(),
)

# Servers that share this database, by the engine of their nodes.
servers = Table(
    "servers",
    metadata,
    Column("engine", _Key, primary_key=True),
    Column("place", Text, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("url", Text, nullable=False, server_default=""),
    Column("key", Text, nullable=False, server_default=""),
)

# One row: the declared tree of queues.
queue_tree = Table(
    "queue_tree",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("tree", Text, nullable=False),  # JSON
)

reservations = Table(
    "reservations",
    metadata,
    Column("name", _Key, primary_key=True),
    Column("reservation", Text, nullable=False),  # JSON
)

used = Table(
    "used",
    metadata,
    Column("queue", _Key, primary_key=True),
    Column("user_name", _Key, primary_key=True),
    Column("share_seconds", Double, nullable=False),
    Column("at", BigInteger, nullable=False),
    _touched(),
)

# Of ended attempts; it outlives their runs.
usage = Table(
    "usage",
    metadata,
    Column("attempt", _Key, primary_key=True),
    Column("user_name", _Key, nullable=False),
    Column("queue", _Key, nullable=False),
    Column("project", _Key, nullable=False),
    Column("placed_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("gpu_milli", BigInteger, nullable=False),
    Column("cpu_milli", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Index("usage_ended", "ended_at"),
)

durations = Table(
    "durations",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("seconds", LargeBinary, nullable=False),  # doubles of eight bytes, little-endian, newest last
    _touched(),
)

run_numbers = Table(
    "run_numbers",
    metadata,
    Column("user_name", _Key, primary_key=True),
    Column("project", _Key, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("name", _Key, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("metric", Text, nullable=False),
    Column("higher_is_better", Boolean),
    Column("description", Text, nullable=False, server_default=""),  # Markdown
    Column("description_revision", BigInteger, nullable=False, server_default=text("0")),
)

dataset_versions = Table(
    "dataset_versions",
    metadata,
    Column("dataset", _Key, ForeignKey("datasets.name", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("manifest", _Key, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", _Key, nullable=False),
    Column("message", Text, nullable=False),
    Column("derived_from", Text, nullable=False, server_default=""),
)

dataset_numbers = Table(
    "dataset_numbers",
    metadata,
    # also of deleted datasets: version numbers are never reused
    Column("dataset", _Key, primary_key=True),
    Column("last", Integer, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("hash", _Key, primary_key=True),
    Column("user_name", _Key, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("name", _Key, nullable=False, server_default=""),  # "" for tokens that are older than names
    Column("scopes", Text, nullable=False, server_default="admin"),  # separated by commas
    Column("expires_at", BigInteger),
    Column("used_at", BigInteger),
)

web_sessions = Table(
    "web_sessions",
    metadata,
    Column("hash", _Key, primary_key=True),
    Column("kind", _Key, nullable=False),  # "link" until it is used, then "session"
    Column("token", _Key, nullable=False),  # the hash of a row of `tokens`, which may be removed
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("browser", Text, nullable=False, server_default=""),  # such as "Firefox on Linux"
    Column("address", Text, nullable=False, server_default=""),  # of the last use
    Column("used_at", BigInteger),
)

former_users = Table("former_users", metadata, Column("user_name", _Key, primary_key=True))  # removed users

user_secrets = Table(
    "user_secrets",
    metadata,
    Column("user_name", _Key, primary_key=True),
    Column("name", _Key, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("set_at", BigInteger, nullable=False),
)

saved_views = Table(
    "saved_views",
    metadata,
    Column("user_name", _Key, primary_key=True),
    Column("name", _Key, primary_key=True),
    Column("shared", Boolean, nullable=False),
    Column("view", Text, nullable=False),  # JSON
    Column("updated_at", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False, server_default=text("1")),
    Index("saved_views_shared", "shared"),
)

reports = Table(
    "reports",
    metadata,
    Column("id", _Key, primary_key=True),
    Column("user_name", _Key, nullable=False),
    Column("title", Text, nullable=False),
    Column("access", _Key, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", _Key, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),  # of the blocks
    Column("blocks", Text, nullable=False),  # JSON
    Index("reports_user", "user_name"),
    Index("reports_updated", "updated_at", "id"),
)

# Earlier states of reports.
report_revisions = Table(
    "report_revisions",
    metadata,
    Column("report", _Key, ForeignKey("reports.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("title", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", _Key, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("blocks", Text, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", _Key, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# `hold_base:QUEUE`: the base of positions in that queue.
counters = Table(
    "counters",
    metadata,
    Column("name", _Key, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# One row. `clock` counts writes that other readers may have to see. `version` is its value at the last write
# that a policy sees, and the others at the last write that changed their part. `removed` is the largest
# `touched` of a deleted run.
marks = Table(
    "marks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("clock", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("nodes", BigInteger, nullable=False),
    Column("queues", BigInteger, nullable=False),
    Column("reservations", BigInteger, nullable=False),
    Column("promises", BigInteger, nullable=False),
    Column("learnt", BigInteger, nullable=False),  # the tables `used` and `durations`
    Column("removed", BigInteger, nullable=False),
)

# The total size of the files of each manifest, in bytes.
tree_sizes = Table(
    "tree_sizes",
    metadata,
    Column("manifest", _Key, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    # the last use, to about half an hour
    Column("seen_at", BigInteger, nullable=False, server_default=text("0")),
)

# Unreferenced uploads of users to a server; recorded only with a quota.
uploads = Table(
    "uploads",
    metadata,
    Column("server", _Key, primary_key=True),
    Column("user_name", _Key, primary_key=True),
    Column("digest", _Key, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

# Changes with their users. Rows are added, and removed after the retention time; no table refers to them.
audit = Table(
    "audit",
    metadata,
    Column("id", _Serial, primary_key=True),  # in order of arrival
    Column("at", BigInteger, nullable=False),
    Column("user_name", _Key, nullable=False),
    Column("action", _Key, nullable=False),
    Column("target", _Key, nullable=False),
    Column("target_id", _Key, nullable=False),
    Column("outcome", _Key, nullable=False),
    Column("origin", Text, nullable=False),
    Column("token", _Key, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
    Index("audit_at", "at"),
    Index("audit_target", "target"),
    Index("audit_target_id", "target_id"),
    Index("audit_user", "user_name", "id"),
)

# What changed, in the order of the commits. The triggers of `change_triggers` add the rows, and
# the oldest are removed.
changes = Table(
    "changes",
    metadata,
    Column("seq", _Serial, primary_key=True),
    Column("tag", BigInteger, nullable=False),  # random: identifies this row among copies of the database
    Column("at", BigInteger, nullable=False),
    Column("kind", _Key, nullable=False),
    Column("subject", _Key, nullable=False),
    Column("change", _Key, nullable=False),
    Column("detail", Text, nullable=False),
    Column("frequent", SmallInteger, nullable=False),  # 1 for changes that are sent at most once a second
)

# One row: the leader. Without a holder, there is none.
lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", _Key),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
