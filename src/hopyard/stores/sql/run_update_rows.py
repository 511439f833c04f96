"""Rows of changed runs: of waiting runs in all requests, of others in name, tags and note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, select, update

from hopyard.domain.gang import DEFAULT_PRIORITY
from hopyard.domain.ids import DEFAULT_QUEUE, RunId, RunName
from hopyard.domain.run import Run, RunEvent, RunPhase
from hopyard.domain.run_change import concurrent_change_conflict
from hopyard.domain.script_tags import (
    ScriptTags,
    apply_script_tags,
    decode_script_tags,
    encode_script_tags,
)
from hopyard.stores.sql.codec import decode_spec, encode_gang_request, fingerprint, spec_columns, to_us
from hopyard.stores.sql.create_runs import search_text
from hopyard.stores.sql.tables import run_contents, run_events, run_tags, runs


def check_run_unchanged(conn: Connection, before: Run, phase: RunPhase) -> None:
    """Raises Conflict if the run differs from `before`."""
    query = select(run_contents.c.spec, run_contents.c.note, runs.c.held_by, runs.c.archived).join(
        runs, runs.c.id == run_contents.c.run
    )
    spec, note, held_by, archived = conn.execute(query.where(runs.c.id == before.id)).one()
    held_by = held_by if phase is RunPhase.QUEUED else None
    if (held_by, note, bool(archived), fingerprint(decode_spec(spec))) != (
        before.held_by,
        before.note,
        before.archived,
        fingerprint(before.spec),
    ):
        raise concurrent_change_conflict(before)


def write_run_update(conn: Connection, before: Run, after: Run, event: RunEvent, clock: int | None) -> None:
    """Writes the changes. clock: the clock for the run's row, if a policy sees the change."""
    spec = after.spec
    values: dict[str, Any] = {"label": spec.label, "archived": after.archived}
    if clock is not None:
        values |= {
            "queue": spec.queue or DEFAULT_QUEUE,
            "priority": DEFAULT_PRIORITY if spec.priority is None else spec.priority,
            "gang": encode_gang_request(spec),
            "held_by": after.held_by,
            "changed": True,
            "touched": clock,
        }
    conn.execute(update(runs).where(runs.c.id == before.id).values(values))
    contents = {**spec_columns(spec), "search": search_text(before.name, spec), "note": after.note}
    conn.execute(update(run_contents).where(run_contents.c.run == before.id).values(contents))
    if spec.tags != before.spec.tags:
        _replace_tags(conn, before.id, spec.tags)
    conn.execute(
        run_events.insert().values(
            run=before.id, at=to_us(event.at), kind=str(event.kind), detail=event.detail
        )
    )


def write_script_tags(conn: Connection, run: RunId, new: ScriptTags) -> None:
    """Writes the tags and the note that the run's script sets."""
    query = (
        select(
            runs.c.user_name,
            runs.c.project,
            runs.c.number,
            run_contents.c.spec,
            run_contents.c.note,
            run_contents.c.script_tags,
        )
        .join(runs, runs.c.id == run_contents.c.run)
        .where(runs.c.id == run)
    )
    user, project, number, spec_text, note, logged = conn.execute(query).one()
    before = decode_spec(spec_text)
    spec, new_note, all_logged = apply_script_tags(before, note, decode_script_tags(logged), new)
    values: dict[str, Any] = {"note": new_note, "script_tags": encode_script_tags(all_logged)}
    if spec.tags != before.tags:
        name = RunName(user, project, number)
        values |= {**spec_columns(spec), "search": search_text(name, spec)}
        _replace_tags(conn, run, spec.tags)
    conn.execute(update(run_contents).where(run_contents.c.run == run).values(values))


def _replace_tags(conn: Connection, run: RunId, tags: Mapping[str, str]) -> None:
    conn.execute(delete(run_tags).where(run_tags.c.run == run))
    if tags:
        rows = [{"run": run, "key": key, "value": value} for key, value in tags.items()]
        conn.execute(run_tags.insert(), rows)
