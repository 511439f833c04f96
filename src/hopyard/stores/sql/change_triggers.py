"""The triggers that write the table `changes`.

A trigger sees every write, also of other servers and of later code. A change that a write had to record by
itself would be forgotten some day, and a client would miss it silently.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from hopyard.domain.change import ChangeKind, RunChange, TableChange
from hopyard.domain.run import RunEventKind

_MAX_DETAIL = 500  # characters
_PREFIX = "hopyard_changes_"
_TAG_RANGE = 2**31


class _Trigger(NamedTuple):
    """columns: those of which one must differ after an update; empty for an insert or a delete. condition:
    must also hold."""

    name: str
    table: str
    event: str
    kind: ChangeKind
    change: str
    subject: str
    columns: tuple[str, ...] = ()
    detail: str = "''"
    condition: str = ""
    is_frequent: bool = False


def _run(
    name: str,
    table: str,
    event: str,
    change: RunChange,
    columns: tuple[str, ...] = (),
    *,
    detail: str = "''",
    condition: str = "",
    is_frequent: bool = False,
) -> _Trigger:
    row = "OLD" if event == "DELETE" else "NEW"
    subject = f"{row}.{'id' if table == 'runs' else 'run'}"
    return _Trigger(
        name, table, event, ChangeKind.RUN, change, subject, columns, detail, condition, is_frequent
    )


def _table(
    name: str,
    table: str,
    event: str,
    kind: ChangeKind,
    subject: str,
    columns: tuple[str, ...] = (),
    *,
    is_frequent: bool = False,
) -> _Trigger:
    change = TableChange.DELETED if event == "DELETE" else TableChange.CHANGED
    return _Trigger(name, table, event, kind, change, subject, columns, is_frequent=is_frequent)


_NAME = "OLD.user_name || '/' || OLD.project || '/' || OLD.number"
_IS_ALERT = f"NEW.kind = '{RunEventKind.ALERT}'"
_STEP = "CAST(NEW.step AS TEXT)"
_PHASE = ("phase", "paused_at", "stop_requested")
_VALUES = ("summary", "latest", "params")
_NODE = ("node", "cordoned")
_RESERVATION = ChangeKind.RESERVATION
_QUEUED = ("queue", "priority", "gang", "held_by")
_TRIGGERS = (
    _run("submitted", "runs", "INSERT", RunChange.SUBMITTED, detail="NEW.phase"),
    _run("phase", "runs", "UPDATE", RunChange.PHASE, _PHASE, detail="NEW.phase"),
    _run("request", "runs", "UPDATE", RunChange.REQUEST, _QUEUED, detail="NEW.queue"),
    _run("name", "runs", "UPDATE", RunChange.NAME, ("label",), detail="NEW.label"),
    _run("archived", "runs", "UPDATE", RunChange.ARCHIVED, ("archived",)),
    _run("deleted", "runs", "DELETE", RunChange.DELETED, detail=_NAME),
    _run("note", "run_contents", "UPDATE", RunChange.NOTE, ("note",)),
    _run("values", "run_contents", "UPDATE", RunChange.VALUES, _VALUES, is_frequent=True),
    _run("tag_added", "run_tags", "INSERT", RunChange.TAGS),
    _run("tag_removed", "run_tags", "DELETE", RunChange.TAGS),
    _run("attempt", "attempts", "INSERT", RunChange.ATTEMPT, detail="NEW.phase"),
    _run("attempt_phase", "attempts", "UPDATE", RunChange.ATTEMPT, ("phase",), detail="NEW.phase"),
    _run("checkpoint", "checkpoints", "INSERT", RunChange.CHECKPOINT, detail=_STEP),
    _run("checkpoint_kept", "checkpoints", "UPDATE", RunChange.CHECKPOINT, ("kept", "damaged"), detail=_STEP),
    _run("command", "commands", "INSERT", RunChange.COMMAND, detail="NEW.kind || ' ' || NEW.state"),
    _run(
        "command_state", "commands", "UPDATE", RunChange.COMMAND, ("state",),
        detail="NEW.kind || ' ' || NEW.state",
    ),
    _run("alert", "run_events", "INSERT", RunChange.ALERT, detail="NEW.detail", condition=_IS_ALERT),
    _run("event", "run_events", "INSERT", RunChange.EVENT, detail="NEW.kind", condition=f"NOT {_IS_ALERT}"),
    _table("node", "nodes", "INSERT", ChangeKind.NODE, "NEW.id", is_frequent=True),
    _table("node_changed", "nodes", "UPDATE", ChangeKind.NODE, "NEW.id", _NODE, is_frequent=True),
    _table("node_removed", "nodes", "DELETE", ChangeKind.NODE, "OLD.id", is_frequent=True),
    _table("queues", "queue_tree", "INSERT", ChangeKind.QUEUES, "''"),
    _table("queues_changed", "queue_tree", "UPDATE", ChangeKind.QUEUES, "''", ("tree",)),
    _table("reservation", "reservations", "INSERT", _RESERVATION, "NEW.name"),
    _table(
        "reservation_changed", "reservations", "UPDATE", _RESERVATION, "NEW.name", ("reservation",)
    ),
    _table("reservation_removed", "reservations", "DELETE", _RESERVATION, "OLD.name"),
    _table("report", "reports", "INSERT", ChangeKind.REPORT, "NEW.id"),
    _table("report_changed", "reports", "UPDATE", ChangeKind.REPORT, "NEW.id", ("revision",)),
    _table("report_removed", "reports", "DELETE", ChangeKind.REPORT, "OLD.id"),
)  # fmt: skip


def create_triggers(conn: Connection) -> None:
    """Creates the triggers again, since a migration that copies a table drops its triggers, and adds a first
    row: a cursor is the position of an existing row."""
    create = _create_in_postgresql if conn.dialect.name == "postgresql" else _create_in_sqlite
    for trigger in _TRIGGERS:
        create(conn, trigger)
    is_postgresql = conn.dialect.name == "postgresql"
    values = _values(is_postgresql, f"'{ChangeKind.SERVER}'", "''", "'created'", "''", 0)
    conn.exec_driver_sql(f"{_INSERT} SELECT {values} WHERE NOT EXISTS (SELECT 1 FROM changes)")


_INSERT = "INSERT INTO changes (tag, at, kind, subject, change, detail, frequent)"


def _values(is_postgresql: bool, kind: str, subject: str, change: str, detail: str, frequent: int) -> str:
    tag, at = (
        (
            f"CAST(floor(random() * {_TAG_RANGE}) AS BIGINT)",
            "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
        )
        if is_postgresql
        else (
            f"abs(random() % {_TAG_RANGE})",
            "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
        )
    )
    return f"{tag}, {at}, {kind}, {subject}, {change}, {detail}, {frequent}"


def _statement(trigger: _Trigger, *, is_postgresql: bool) -> str:
    values = _values(
        is_postgresql,
        f"'{trigger.kind}'",
        trigger.subject,
        f"'{trigger.change}'",
        f"substr({trigger.detail}, 1, {_MAX_DETAIL})",
        int(trigger.is_frequent),
    )
    return f"{_INSERT} VALUES ({values})"


def _head(trigger: _Trigger, *, differs: str) -> tuple[str, str]:
    """Returns the event and the condition. differs: the operator of values that are not equal."""
    columns = f" OF {', '.join(trigger.columns)}" if trigger.columns else ""
    conditions = [f"OLD.{column} {differs} NEW.{column}" for column in trigger.columns]
    condition = " OR ".join(conditions) or trigger.condition
    return (
        f"AFTER {trigger.event}{columns} ON {trigger.table} FOR EACH ROW",
        f" WHEN ({condition})" if condition else "",
    )


def _create_in_sqlite(conn: Connection, trigger: _Trigger) -> None:
    name = _PREFIX + trigger.name
    head, condition = _head(trigger, differs="IS NOT")
    conn.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
    conn.exec_driver_sql(
        f"CREATE TRIGGER {name} {head}{condition} BEGIN {_statement(trigger, is_postgresql=False)}; END"
    )


def _create_in_postgresql(conn: Connection, trigger: _Trigger) -> None:
    name = _PREFIX + trigger.name
    head, condition = _head(trigger, differs="IS DISTINCT FROM")
    body = f"BEGIN {_statement(trigger, is_postgresql=True)}; RETURN NULL; END"
    conn.exec_driver_sql(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
    )
    conn.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON {trigger.table}")
    conn.exec_driver_sql(f"CREATE TRIGGER {name} {head}{condition} EXECUTE FUNCTION {name}()")
