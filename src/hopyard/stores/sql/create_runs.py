"""Accepting runs: all submissions that wait at one moment become one set of statements."""

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
from hopyard.stores.sql.raw_statements import RawSelectByIds, RawStatement
from hopyard.stores.sql.run_numbers import allocate_run_numbers
from hopyard.stores.sql.run_rows import RUNS_OF_IDS, to_run
from hopyard.stores.sql.tables import IDS_PER_QUERY, run_contents, run_datasets, run_tags, runs
from hopyard.stores.sql.versions import TableVersions, WriteStamp

UNKNOWN_FINGERPRINT = (
    ""  # the fingerprint of a run that came from an older schema: whoever knows its id submitted it
)

_SELECT_EXISTING = RawSelectByIds(
    select(runs.c.id, runs.c.user_name, run_contents.c.fingerprint).join(
        run_contents, run_contents.c.run == runs.c.id
    ),
    runs.c.id,
)
MAX_LOGGED_RUNS = 256  # who looks for more reads the rows: entries are kept whether anybody reads them or not
_GANG_COLUMN_NAMES = tuple(column.name for column in GANG_COLUMNS)
_INSERT_RUN = RawStatement(runs.insert())
_INSERT_CONTENTS = RawStatement(run_contents.insert())
_INSERT_TAG = RawStatement(run_tags.insert())
_INSERT_DATASET = RawStatement(run_datasets.insert())


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
    """The runs of each submission, or why it was refused."""
    ids = list(dict.fromkeys(new.id for submission in submissions for new in submission.runs))
    known = _read_existing(conn, ids)
    accepted: dict[RunId, _AcceptedRun] = {}
    results: list[list[Run] | Exception] = []
    for submission in submissions:
        taken = _accept(submission, known, accepted)
        if isinstance(taken, Exception):
            results.append(taken)
        else:
            accepted.update(taken)
            results.append([])
    _assign_numbers(conn, list(accepted.values()))
    fresh = _insert(conn, list(accepted.values()), change_log)
    retried = _read_runs(conn, [run for run in ids if run in known])
    there = {**retried, **fresh}
    return [
        [there[new.id] for new in submission.runs] if isinstance(result, list) else result
        for submission, result in zip(submissions, results, strict=True)
    ]


def _read_existing(conn: Connection, ids: list[RunId]) -> dict[str, tuple[str, str]]:
    """User and fingerprint of the runs that are there already."""
    return {id_: (user, print_) for id_, user, print_ in _SELECT_EXISTING.fetch_all(conn, ids)}


def _accept(
    submission: Submission, existing: dict[str, tuple[str, str]], accepted: dict[RunId, _AcceptedRun]
) -> dict[RunId, _AcceptedRun] | Conflict:
    """What of the submission is new, given what is there and what was accepted before it in this batch."""
    taken: dict[RunId, _AcceptedRun] = {}
    for new in submission.runs:
        print_ = fingerprint(new.spec)
        earlier = taken.get(new.id) or accepted.get(new.id)
        there = (earlier.new.user, earlier.fingerprint) if earlier is not None else existing.get(new.id)
        if there is None:
            taken[new.id] = _AcceptedRun(new, submission.now, print_)
        elif there not in ((new.user, print_), (new.user, UNKNOWN_FINGERPRINT)):
            return Conflict(f"another run has the id {new.id}", hints=("submit it again under a new id",))
    return taken


def _assign_numbers(conn: Connection, accepted: list[_AcceptedRun]) -> None:
    counts = Counter((one.new.user, one.new.spec.project) for one in accepted)
    following = {name: allocate_run_numbers(conn, *name, count) for name, count in counts.items()}
    for one in accepted:
        name = (one.new.user, one.new.spec.project)
        one.number = following[name]
        following[name] += 1


def _insert(conn: Connection, accepted: list[_AcceptedRun], change_log: ChangeLog) -> dict[str, Run]:
    if not accepted:
        return {}
    tags = [
        {"run": one.new.id, "key": key, "value": value}
        for one in accepted
        for key, value in one.new.spec.tags.items()
    ]
    datasets = [
        {
            "run": one.new.id,
            "position": at,
            "dataset": ref.name,
            "version": ref.version,
            "manifest": ref.manifest,
        }
        for one in accepted
        for at, ref in enumerate(one.new.spec.datasets)
    ]
    stamp = WriteStamp(conn, on_written=lambda after: _log_submitted(change_log, stamp.before, after, rows))
    rows = [_run_row(one, stamp) for one in accepted]
    _INSERT_RUN.execute_many(conn, rows)
    _INSERT_CONTENTS.execute_many(conn, [_contents_row(one) for one in accepted])
    _INSERT_TAG.execute_many(conn, tags)
    _INSERT_DATASET.execute_many(conn, datasets)
    stamp.touch("runs", visible=any(not one.new.offline for one in accepted))
    stamp.write()
    return {one.new.id: _to_run(one) for one in accepted}


def _log_submitted(
    change_log: ChangeLog, before: TableVersions, after: TableVersions, rows: Sequence[dict[str, Any]]
) -> None:
    """Readers need not look for who waits from now on, unless very many do."""
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
        phase=RunPhase.RUNNING if offline else RunPhase.QUEUED,
        submitted_at=accepted.now,
        params=dict(spec.params),
        offline=offline,
    )


def _read_runs(conn: Connection, ids: list[RunId]) -> dict[str, Run]:
    found: dict[str, Run] = {}
    for at in range(0, len(ids), IDS_PER_QUERY):
        for row in conn.execute(RUNS_OF_IDS, {"b_ids": ids[at : at + IDS_PER_QUERY]}):
            found[row.id] = to_run(row)
    return found
