"""Creates runs: all concurrent submissions become one set of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from hopyard.domain.gang import DEFAULT_PRIORITY
from hopyard.domain.ids import DEFAULT_QUEUE, RunId, RunName
from hopyard.domain.run import Run, RunPhase, RunSpec
from hopyard.errors import Conflict
from hopyard.interfaces.run_store import NewRun
from hopyard.stores.sql.change_log import ChangeLog, ChangeSet
from hopyard.stores.sql.codec import (
    encode_gang_request,
    encode_map,
    encode_words,
    fingerprint,
    spec_columns,
    to_us,
)
from hopyard.stores.sql.gang_rows import GANG_COLUMNS, to_gang
from hopyard.stores.sql.notifications import end_rows
from hopyard.stores.sql.raw_statements import RawSelectByIds, RawStatement
from hopyard.stores.sql.run_numbers import allocate_run_numbers
from hopyard.stores.sql.run_rows import RUNS_OF_IDS, to_run
from hopyard.stores.sql.tables import IDS_PER_QUERY, notifications, run_contents, run_datasets, run_tags, runs
from hopyard.stores.sql.versions import TableVersions, WriteStamp

# the fingerprint of runs from an older schema: any submission with their id counts as a retry
UNKNOWN_FINGERPRINT = ""

_SELECT_EXISTING = RawSelectByIds(
    select(runs.c.id, runs.c.user_name, run_contents.c.fingerprint).join(
        run_contents, run_contents.c.run == runs.c.id
    ),
    runs.c.id,
)
# of one entry of the change log; readers of more read the rows instead, because all entries are kept in
# memory
MAX_LOGGED_RUNS = 256
_GANG_COLUMN_NAMES = tuple(column.name for column in GANG_COLUMNS)
_INSERT_RUN = RawStatement(runs.insert())
_INSERT_CONTENTS = RawStatement(run_contents.insert())
_INSERT_TAG = RawStatement(run_tags.insert())
_INSERT_DATASET = RawStatement(run_datasets.insert())
_INSERT_NOTIFICATION = RawStatement(notifications.insert())


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of `create`: all of its runs are accepted, or none."""

    runs: Sequence[NewRun]
    now: datetime


@dataclass(slots=True)
class _AcceptedRun:
    new: NewRun
    now: datetime
    fingerprint: str
    number: int = 0


def create_runs(
    conn: Connection, submissions: Sequence[Submission], *, change_log: ChangeLog
) -> list[list[Run] | Exception]:
    """Returns the runs of each submission, or the error that rejected it."""
    ids = list(dict.fromkeys(new_run.id for submission in submissions for new_run in submission.runs))
    existing = _read_existing(conn, ids)
    accepted: dict[RunId, _AcceptedRun] = {}
    results: list[list[Run] | Exception] = []
    for submission in submissions:
        new_runs = _accept(submission, existing, accepted)
        if isinstance(new_runs, Exception):
            results.append(new_runs)
        else:
            accepted.update(new_runs)
            results.append([])
    _assign_numbers(conn, list(accepted.values()))
    inserted = _insert(conn, list(accepted.values()), change_log)
    retried = _read_runs(conn, [run for run in ids if run in existing])
    runs = {**retried, **inserted}
    return [
        [runs[new_run.id] for new_run in submission.runs] if isinstance(result, list) else result
        for submission, result in zip(submissions, results, strict=True)
    ]


def _read_existing(conn: Connection, ids: list[RunId]) -> dict[str, tuple[str, str]]:
    """Returns user and fingerprint of the existing runs, by id."""
    return {
        id_: (user, stored_fingerprint)
        for id_, user, stored_fingerprint in _SELECT_EXISTING.fetch_all(conn, ids)
    }


def _accept(
    submission: Submission, existing: dict[str, tuple[str, str]], accepted: dict[RunId, _AcceptedRun]
) -> dict[RunId, _AcceptedRun] | Conflict:
    """Returns the new runs of a submission, or Conflict. Runs that exist or were accepted before it in this
    batch are not new."""
    new_runs: dict[RunId, _AcceptedRun] = {}
    for new_run in submission.runs:
        new_fingerprint = fingerprint(new_run.spec)
        batch_run = new_runs.get(new_run.id) or accepted.get(new_run.id)
        existing_key = (
            (batch_run.new.user, batch_run.fingerprint) if batch_run is not None else existing.get(new_run.id)
        )
        if existing_key is None:
            new_runs[new_run.id] = _AcceptedRun(new_run, submission.now, new_fingerprint)
        elif existing_key not in ((new_run.user, new_fingerprint), (new_run.user, UNKNOWN_FINGERPRINT)):
            return Conflict(f"another run has the id {new_run.id}", hints=("submit it again under a new id",))
    return new_runs


def _assign_numbers(conn: Connection, accepted: list[_AcceptedRun]) -> None:
    counts = Counter((run.new.user, run.new.spec.project) for run in accepted)
    next_numbers = {name: allocate_run_numbers(conn, *name, count) for name, count in counts.items()}
    for run in accepted:
        name = (run.new.user, run.new.spec.project)
        run.number = next_numbers[name]
        next_numbers[name] += 1


def _insert(conn: Connection, accepted: list[_AcceptedRun], change_log: ChangeLog) -> dict[str, Run]:
    if not accepted:
        return {}
    tags = [
        {"run": run.new.id, "key": key, "value": value}
        for run in accepted
        for key, value in run.new.spec.tags.items()
    ]
    datasets = [
        {
            "run": run.new.id,
            "position": position,
            "dataset": ref.name,
            "version": ref.version,
            "manifest": ref.manifest,
        }
        for run in accepted
        for position, ref in enumerate(run.new.spec.datasets)
    ]
    stamp = WriteStamp(conn, on_written=lambda after: _log_submitted(change_log, stamp.before, after, rows))
    rows = [_run_row(run, stamp) for run in accepted]
    _INSERT_RUN.execute_many(conn, rows)
    _INSERT_CONTENTS.execute_many(conn, [_contents_row(run) for run in accepted])
    _INSERT_TAG.execute_many(conn, tags)
    _INSERT_DATASET.execute_many(conn, datasets)
    _INSERT_NOTIFICATION.execute_many(
        conn, [row for run in accepted for row in end_rows(run.new.id, run.new.spec, run.now)]
    )
    stamp.touch("runs", visible=any(not run.new.offline for run in accepted))
    stamp.write()
    return {run.new.id: _to_run(run) for run in accepted}


def _log_submitted(
    change_log: ChangeLog, before: TableVersions, after: TableVersions, rows: Sequence[dict[str, Any]]
) -> None:
    """Adds the submitted gangs to the change log, unless there are very many; readers then need not read
    their rows."""
    if len(rows) <= MAX_LOGGED_RUNS:
        waiting = [
            [row[column] for column in _GANG_COLUMN_NAMES] for row in rows if row["phase"] == RunPhase.QUEUED
        ]
        change_log.write(before, ChangeSet(after, submitted=tuple(map(to_gang, waiting))))


def search_text(name: RunName, spec: RunSpec) -> str:
    return "\n".join([str(name), spec.label, *(f"{key}={value}" for key, value in spec.tags.items())]).lower()


def _run_row(accepted: _AcceptedRun, stamp: WriteStamp) -> dict[str, Any]:
    spec, offline, now = accepted.new.spec, accepted.new.offline, to_us(accepted.now)
    return {
        "id": accepted.new.id,
        "user_name": accepted.new.user,
        "project": spec.project,
        "number": accepted.number,
        "label": spec.label,
        "phase": str(RunPhase.RUNNING if offline else RunPhase.QUEUED),
        "submitted_at": now,
        "started_at": None,
        "ended_at": None,
        "queue": spec.queue or DEFAULT_QUEUE,
        "priority": DEFAULT_PRIORITY if spec.priority is None else spec.priority,
        "gang": encode_gang_request(spec),
        "script": spec.script,
        "wants": encode_words(spec.input_digests),
        "attempts": 0,
        "max_attempts": spec.max_attempts,
        "served_us": 0,
        "preemptions": 0,
        "not_before": None,
        "put_back": "",
        "resume_step": None if spec.resume is None else spec.resume.step,
        "stop_requested": False,
        "offline": offline,
        "exit": None,
        "touched": stamp.now,
        "parent": spec.parent,
        "study": spec.study is not None,
    }


def _contents_row(accepted: _AcceptedRun) -> dict[str, Any]:
    spec = accepted.new.spec
    name = RunName(accepted.new.user, spec.project, accepted.number)
    return {
        "run": accepted.new.id,
        **spec_columns(spec),
        "fingerprint": accepted.fingerprint,
        "search": search_text(name, spec),
        "params": encode_map(spec.params),
        "summary": "{}",
        "latest": "{}",
        "code": spec.code,
        "resume_manifest": None if spec.resume is None else spec.resume.manifest,
        "artifact": None,
        "run_folder": spec.initial_folder,
        "run_folder_bytes": 0,
        "requirements": spec.environment.requirements,
        "lock": spec.environment.lock,
        "git_diff": None if spec.git is None else spec.git.diff,
    }


def _to_run(accepted: _AcceptedRun) -> Run:
    spec, offline = accepted.new.spec, accepted.new.offline
    return Run(
        id=accepted.new.id,
        name=RunName(accepted.new.user, spec.project, accepted.number),
        spec=spec,
        run_folder=spec.initial_folder,
        phase=RunPhase.RUNNING if offline else RunPhase.QUEUED,
        submitted_at=accepted.now,
        params=dict(spec.params),
        offline=offline,
    )


def _read_runs(conn: Connection, ids: list[RunId]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        for row in conn.execute(RUNS_OF_IDS, {"b_ids": ids[start : start + IDS_PER_QUERY]}):
            runs[row.id] = to_run(row)
    return runs
