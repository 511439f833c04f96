"""Runs and their records, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, literal, not_, or_, select, update

from hopyard.domain.attempt import AttemptPhase, Exit
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, RunName, attempt_id
from hopyard.domain.metric_extremes import Extremes, StepValue
from hopyard.domain.run import (
    Attempt,
    ParamValue,
    Run,
    RunEvent,
    RunEventKind,
    RunPhase,
    check_not_superseded,
    checked_transition,
)
from hopyard.domain.run_query import RunValues
from hopyard.domain.run_values import merge_values
from hopyard.domain.script_tags import ScriptTags, decode_script_tags
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.run_store import (
    MAX_UNSTORED_MESSAGES,
    AttemptFilter,
    NewRun,
    RunAttempt,
    RunFilter,
    RunSummary,
)
from hopyard.stores.sql import checkpoint_rows
from hopyard.stores.sql.attempt_spans import read_attempts_between
from hopyard.stores.sql.codec import (
    decode_gang_request,
    decode_map,
    decode_spec,
    decode_words,
    encode_exit,
    encode_map,
    encode_words,
    from_us,
    spec_columns,
    to_us,
)
from hopyard.stores.sql.create_runs import Submission, create_runs
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.live_attempt_rows import IS_LIVE
from hopyard.stores.sql.metric_rows import decode_extremes, write_extremes, write_metrics
from hopyard.stores.sql.query_value_cache import MAX_CACHED_RUNS, QueryValueCache
from hopyard.stores.sql.run_filters import listing_query
from hopyard.stores.sql.run_rows import (
    ATTEMPTS_OF_RUN,
    RUN_OF_ID,
    RUN_OF_NAME,
    SHOWN_PHASE,
    to_attempt,
    to_run,
)
from hopyard.stores.sql.run_star_rows import starred_runs, write_star
from hopyard.stores.sql.run_update_rows import write_script_tags
from hopyard.stores.sql.tables import IDS_PER_QUERY, attempts, run_contents, run_datasets, run_events, runs
from hopyard.stores.sql.versions import WriteStamp

_OFFLINE_PHASES = {
    AttemptPhase.SUCCEEDED: RunPhase.SUCCEEDED,
    AttemptPhase.FAILED: RunPhase.FAILED,
    AttemptPhase.LOST: RunPhase.FAILED,
    AttemptPhase.STOPPED: RunPhase.CANCELLED,
}
_IS_BEING_SYNCED = and_(runs.c.offline, runs.c.attempts == 0)
_SELECT_EXISTING = select(runs.c.id, runs.c.phase, runs.c.offline, runs.c.attempts).where(
    runs.c.id == bindparam("b_id")
)
_SELECT_GANG_REQUEST = select(runs.c.gang).where(runs.c.id == bindparam("b_id"))


class SqlRunStore:
    """RunStore over a Database. max_cached_runs: how many runs it keeps in memory for queries."""

    def __init__(self, database: Database, *, max_cached_runs: int = MAX_CACHED_RUNS) -> None:
        self._database = database
        self._query_values = QueryValueCache(max_cached_runs)
        self._insert_runs = partial(create_runs, change_log=database.change_log)

    async def create(self, runs: Sequence[NewRun], /, *, now: datetime) -> Sequence[Run]:
        return await self._database.write_together(self._insert_runs, Submission(runs, now))

    async def get(self, run: RunId, /) -> Run:
        def read(conn: Connection) -> Run:
            row = conn.execute(RUN_OF_ID, {"b_id": run}).one_or_none()
            if row is None:
                raise _not_found_error(run)
            return to_run(row)

        return await self._database.read(read)

    async def find_existing(self, run_ids: Sequence[RunId], /) -> frozenset[RunId]:
        def read(conn: Connection) -> frozenset[RunId]:
            existing: set[RunId] = set()
            for start in range(0, len(run_ids), IDS_PER_QUERY):
                existing.update(
                    conn.execute(
                        select(runs.c.id).where(runs.c.id.in_(run_ids[start : start + IDS_PER_QUERY]))
                    ).scalars()
                )
            return frozenset(existing)

        return await self._database.read(read)

    async def find_by_name(self, name: RunName, /) -> Run | None:
        def read(conn: Connection) -> Run | None:
            row = conn.execute(
                RUN_OF_NAME, {"b_user": name.user, "b_project": name.project, "b_number": name.number}
            ).one_or_none()
            return None if row is None else to_run(row)

        return await self._database.read(read)

    async def list(self, where: RunFilter, /) -> Sequence[Run]:
        query = listing_query(where)

        def read(conn: Connection) -> list[Run]:
            return [to_run(row, brief=where.brief) for row in conn.execute(*query)]

        return await self._database.read(read)

    async def query_values(
        self, where: RunFilter, /, *, now: datetime | None
    ) -> Sequence[tuple[RunId, RunValues]]:
        return await self._database.read(lambda conn: self._query_values.read(conn, where, now))

    async def count_by_phase(self) -> Mapping[RunPhase, int]:
        def read(conn: Connection) -> dict[RunPhase, int]:
            query = select(SHOWN_PHASE, func.count()).where(not_(_IS_BEING_SYNCED)).group_by(SHOWN_PHASE)
            return {RunPhase(phase): count for phase, count in conn.execute(query)}

        return await self._database.read(read)

    async def count_trials(self, studies: Sequence[RunId], /) -> Mapping[RunId, Mapping[RunPhase, int]]:
        def read(conn: Connection) -> dict[RunId, dict[RunPhase, int]]:
            counts: dict[RunId, dict[RunPhase, int]] = {}
            query = select(runs.c.parent, SHOWN_PHASE, func.count()).group_by(runs.c.parent, SHOWN_PHASE)
            for start in range(0, len(studies), IDS_PER_QUERY):
                for parent, phase, count in conn.execute(
                    query.where(runs.c.parent.in_(studies[start : start + IDS_PER_QUERY]))
                ):
                    counts.setdefault(parent, {})[RunPhase(phase)] = count
            return counts

        return await self._database.read(read)

    async def list_orphans(self) -> Sequence[RunId]:
        def read(conn: Connection) -> list[RunId]:
            parent = runs.alias("study_run")
            final = [str(phase) for phase in RunPhase if phase.is_final]
            parent_ended = or_(parent.c.id.is_(None), parent.c.phase.in_(final))
            query = select(runs.c.id).outerjoin(parent, parent.c.id == runs.c.parent)
            return list(
                conn.execute(
                    query.where(runs.c.parent.is_not(None), runs.c.phase.not_in(final), parent_ended)
                ).scalars()
            )

        return await self._database.read(read)

    async def attempts(self, run: RunId, /) -> Sequence[Attempt]:
        def read(conn: Connection) -> list[Attempt]:
            _get_run_row(conn, run)
            request = decode_gang_request(conn.execute(_SELECT_GANG_REQUEST, {"b_id": run}).scalar_one())
            return [to_attempt(row, request) for row in conn.execute(ATTEMPTS_OF_RUN, {"b_id": run})]

        return await self._database.read(read)

    async def attempts_between(self, where: AttemptFilter, /) -> Sequence[RunAttempt]:
        return await self._database.read(lambda conn: read_attempts_between(conn, where))

    async def events(
        self, run: RunId, /, *, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> Sequence[RunEvent]:
        def read(conn: Connection) -> list[RunEvent]:
            _get_run_row(conn, run)
            skipped = after
            if newest and limit is not None:
                count = conn.execute(select(func.count()).where(run_events.c.run == run)).scalar_one()
                skipped = max(after, count - limit)
            query = (
                select(run_events.c.at, run_events.c.kind, run_events.c.detail)
                .where(run_events.c.run == run)
                .order_by(run_events.c.id)
                .offset(skipped)
                .limit(limit)
            )
            return [
                RunEvent(from_us(at), RunEventKind(kind), detail) for at, kind, detail in conn.execute(query)
            ]

        return await self._database.read(read)

    async def events_of(
        self, runs: Sequence[RunId], kind: RunEventKind, /
    ) -> Mapping[RunId, Sequence[RunEvent]]:
        def read(conn: Connection) -> dict[RunId, list[RunEvent]]:
            found: dict[RunId, list[RunEvent]] = {}
            query = (
                select(run_events.c.run, run_events.c.at, run_events.c.detail)
                .where(run_events.c.kind == str(kind))
                .order_by(run_events.c.id)
            )
            for start in range(0, len(runs), IDS_PER_QUERY):
                for run, at, detail in conn.execute(
                    query.where(run_events.c.run.in_(runs[start : start + IDS_PER_QUERY]))
                ):
                    found.setdefault(RunId(run), []).append(RunEvent(from_us(at), kind, detail))
            return found

        return await self._database.read(read)

    async def record_event(self, run: RunId, event: RunEvent, /) -> None:
        def write(conn: Connection) -> None:
            _get_run_row(conn, run)
            values = {"run": run, "at": to_us(event.at), "kind": str(event.kind), "detail": event.detail}
            existing = select(run_events.c.id).where(
                *(run_events.c[name] == value for name, value in values.items())
            )
            if conn.execute(existing).first() is None:
                conn.execute(run_events.insert().values(**values))

        await self._database.write(write)

    async def set_starred(self, run: RunId, user: str, starred: bool, /) -> None:
        def write(conn: Connection) -> None:
            _get_run_row(conn, run)
            write_star(conn, run, user, starred)

        await self._database.write(write)

    async def starred_of(self, user: str, runs: Sequence[RunId], /) -> frozenset[RunId]:
        return await self._database.read(lambda conn: starred_runs(conn, user, runs))

    async def delete(self, run: RunId, /) -> None:
        def write(conn: Connection) -> None:
            row = _get_run_row(conn, run)
            if not (RunPhase(row.phase).is_final or row.offline):
                raise Conflict("the run has not ended", hints=("stop it first: hop stop",))
            stamp = WriteStamp(conn)
            # its attempts were not changed later
            stamp.mark_removed(conn.execute(select(runs.c.touched).where(runs.c.id == run)).scalar_one())
            conn.execute(delete(runs).where(runs.c.id == run))  # foreign keys delete its other rows
            stamp.write()

        await self._database.write(write, vital=True)

    async def record_params(
        self, run: RunId, params: Mapping[str, ParamValue], /, *, attempt: AttemptId | None = None
    ) -> None:
        await self._merge_values(run, "params", params, attempt)

    async def record_summary(
        self, run: RunId, values: Mapping[str, float], /, *, attempt: AttemptId | None = None
    ) -> None:
        await self._merge_values(run, "summary", values, attempt)

    async def record_metrics(
        self,
        run: RunId,
        latest: Mapping[str, tuple[int, float]],
        /,
        *,
        extremes: Mapping[str, Extremes] | None = None,
        attempt: AttemptId | None = None,
        replace_all: bool = False,
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            write_metrics(conn, run, latest, extremes or {}, replace_all=replace_all)

        await self._database.write(write, vital=True)

    async def record_extremes(
        self, run: RunId, metric: str, extremes: Extremes, /, *, latest: StepValue
    ) -> None:
        await self._database.write(lambda conn: write_extremes(conn, run, metric, extremes, latest))

    async def _merge_values(
        self, run: RunId, column: str, values: Mapping[str, Any], attempt: AttemptId | None
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            before = conn.execute(
                select(run_contents.c[column]).where(run_contents.c.run == run)
            ).scalar_one()
            after = encode_map(merge_values(decode_map(before), values))
            if after != before:
                conn.execute(update(run_contents).where(run_contents.c.run == run).values({column: after}))

        await self._database.write(write, vital=True)  # a run can end only after these writes

    async def latest_metrics(
        self, runs: Sequence[RunId], /
    ) -> Mapping[RunId, Mapping[str, tuple[int, float]]]:
        def read(conn: Connection) -> dict[RunId, Mapping[str, tuple[int, float]]]:
            metrics: dict[RunId, Mapping[str, tuple[int, float]]] = {run: {} for run in runs}
            query = select(run_contents.c.run, run_contents.c.latest)
            for start in range(0, len(runs), IDS_PER_QUERY):
                for run, latest in conn.execute(
                    query.where(run_contents.c.run.in_(runs[start : start + IDS_PER_QUERY]))
                ):
                    metrics[run] = {name: (step, value) for name, (step, value) in decode_map(latest).items()}
            return metrics

        return await self._database.read(read)

    async def record_machine_env(
        self, run: RunId, values: Mapping[str, str | None], /, *, attempt: AttemptId | None = None
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            conn.execute(
                update(run_contents).where(run_contents.c.run == run).values(machine_env=encode_map(values))
            )

        await self._database.write(write)

    async def machine_env(self, run: RunId, /) -> Mapping[str, str | None]:
        query = select(run_contents.c.machine_env).where(run_contents.c.run == run)
        text = await self._database.read(lambda conn: conn.execute(query).scalar())
        return {} if text is None else decode_map(text)

    async def record_tags(self, run: RunId, new: ScriptTags, /, *, attempt: AttemptId | None = None) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            write_script_tags(conn, run, new)

        await self._database.write(write, vital=True)

    async def script_tags(self, run: RunId, /) -> ScriptTags:
        query = select(run_contents.c.script_tags).where(run_contents.c.run == run)
        return decode_script_tags(await self._database.read(lambda conn: conn.execute(query).scalar() or ""))

    async def record_unstored(self, run: RunId, messages: Sequence[str], /) -> None:
        def write(conn: Connection) -> None:
            before = conn.execute(select(run_contents.c.unstored).where(run_contents.c.run == run)).scalar()
            if before is None:
                raise _not_found_error(run)
            after = encode_words(
                tuple(dict.fromkeys((*decode_words(before), *messages)))[:MAX_UNSTORED_MESSAGES]
            )
            if after != before:
                conn.execute(update(run_contents).where(run_contents.c.run == run).values(unstored=after))

        await self._database.write(write)

    async def record_artifact(
        self, run: RunId, manifest: Digest, /, *, attempt: AttemptId | None = None
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            conn.execute(update(run_contents).where(run_contents.c.run == run).values(artifact=manifest))

        await self._database.write(write)

    async def record_run_folder(
        self, run: RunId, manifest: Digest, size_bytes: int, /, *, attempt: AttemptId, progress: bool = False
    ) -> None:
        values = {"run_folder": manifest, "run_folder_bytes": size_bytes}
        is_new = or_(run_contents.c.run_folder.is_(None), run_contents.c.run_folder != manifest)

        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            changed = conn.execute(
                update(run_contents).where(run_contents.c.run == run, is_new).values(values)
            )
            if not progress or not changed.rowcount:
                return
            has_losses = (runs.c.id == run, runs.c.losses > 0)
            if conn.execute(update(runs).where(*has_losses).values(losses=0)).rowcount:
                stamp = WriteStamp(conn)
                live = update(attempts).where(attempts.c.id == attempt, IS_LIVE)
                conn.execute(live.values(touched=stamp.now))
                stamp.touch("attempts")
                stamp.write()

        await self._database.write(write)

    async def record_lock(
        self, run: RunId, lock: Digest, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            before = conn.execute(select(run_contents.c.spec).where(run_contents.c.run == run)).scalar_one()
            spec = decode_spec(before)
            spec = replace(spec, environment=replace(spec.environment, lock=lock, packages=dict(packages)))
            values = {**spec_columns(spec), "lock": lock}
            conn.execute(update(run_contents).where(run_contents.c.run == run).values(values))
            stamp = WriteStamp(conn)
            conn.execute(
                update(runs)
                .where(runs.c.id == run)
                .values(wants=encode_words(spec.input_digests), touched=stamp.now)
            )
            stamp.touch("runs")
            stamp.write()

        await self._database.write(write)

    async def record_packages(
        self, run: RunId, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        def write(conn: Connection) -> None:
            _check_not_superseded(conn, run, attempt)
            before = conn.execute(select(run_contents.c.spec).where(run_contents.c.run == run)).scalar_one()
            spec = decode_spec(before)
            if spec.environment.packages != packages:
                spec = replace(spec, environment=replace(spec.environment, packages=dict(packages)))
                values = spec_columns(spec)
                conn.execute(update(run_contents).where(run_contents.c.run == run).values(values))

        await self._database.write(write)

    async def record_checkpoint(self, checkpoint: Checkpoint, /) -> None:
        def write(conn: Connection) -> None:
            _get_run_row(conn, checkpoint.run)
            if checkpoint_rows.insert_checkpoint(conn, checkpoint):
                _record_saved(conn, checkpoint)

        await self._database.write(write)

    async def checkpoints(
        self, run: RunId, /, *, damaged: bool = False, own: bool = False
    ) -> Sequence[Checkpoint]:
        def read(conn: Connection) -> Sequence[Checkpoint]:
            _get_run_row(conn, run)
            return checkpoint_rows.list_checkpoints(conn, run, damaged=damaged, own=own)

        return await self._database.read(read)

    async def checkpoints_of(self, runs: Sequence[RunId], /) -> Mapping[RunId, Sequence[Checkpoint]]:
        return await self._database.read(lambda conn: checkpoint_rows.usable_checkpoints(conn, runs))

    async def set_checkpoint_kept(self, run: RunId, step: int, kept: bool, /) -> None:
        def write(conn: Connection) -> None:
            _get_run_row(conn, run)
            checkpoint_rows.set_kept(conn, run, step, kept)

        await self._database.write(write)

    async def mark_damaged(self, run: RunId, step: int, detail: str, /, *, now: datetime) -> bool:
        def write(conn: Connection) -> bool:
            _get_run_row(conn, run)
            if not checkpoint_rows.mark_damaged(conn, run, step):
                return False
            conn.execute(
                run_events.insert().values(
                    run=run, at=to_us(now), kind=str(RunEventKind.DAMAGED), detail=detail
                )
            )
            return True

        return await self._database.write(write)

    async def delete_checkpoints(
        self, run: RunId, steps: Sequence[int], /, *, own: bool | None = None
    ) -> None:
        await self._database.write(lambda conn: checkpoint_rows.delete_checkpoints(conn, run, steps, own=own))

    async def record_synced(self, run: RunId, at: datetime, /) -> None:
        await self._database.write(
            lambda conn: conn.execute(
                update(runs).where(runs.c.id == run, _IS_BEING_SYNCED).values(synced_at=to_us(at))
            )
        )

    async def finish_offline(
        self, run: RunId, phase: AttemptPhase, exit: Exit, /, *, started_at: datetime, ended_at: datetime
    ) -> None:
        if phase not in _OFFLINE_PHASES:
            raise SpecError(
                f"phase: an offline run cannot end in phase `{phase}`",
                hints=(f"use one of {', '.join(_OFFLINE_PHASES)}",),
            )

        def write(conn: Connection) -> None:
            row = _get_run_row(conn, run)
            if not row.offline:
                raise Conflict("the run was not recorded offline")
            if row.attempts:
                return
            final_phase = checked_transition(RunPhase(row.phase), _OFFLINE_PHASES[phase])
            times = {"started_at": to_us(started_at), "ended_at": to_us(ended_at), "exit": encode_exit(exit)}
            conn.execute(
                attempts.insert().values(
                    id=attempt_id(run, 1),
                    run=run,
                    number=1,
                    phase=str(phase),
                    live=0,
                    engine="",
                    placement="[]",
                    replicas="[]",
                    placed_at=times["started_at"],
                    **times,
                )
            )
            conn.execute(
                update(runs).where(runs.c.id == run).values(phase=str(final_phase), attempts=1, **times)
            )

        await self._database.write(write)

    async def list_summaries(
        self, dataset: str, /, *, limit: int, latest: bool = False, extremes: bool = False
    ) -> Sequence[RunSummary]:
        def read(conn: Connection) -> list[RunSummary]:
            runs_with_dataset = select(run_datasets.c.run).where(run_datasets.c.dataset == dataset)
            metrics = run_contents.c.latest if latest else literal("{}")
            known = run_contents.c.extremes if extremes else literal("{}")
            query = select(runs.c.id, runs.c.submitted_at, run_contents.c.summary, metrics, known).join(
                run_contents, run_contents.c.run == runs.c.id
            )
            has_result = run_contents.c.summary != "{}"
            if latest:
                has_result |= run_contents.c.latest != "{}"
            with_result = query.where(runs.c.id.in_(runs_with_dataset), has_result)
            newest = with_result.order_by(runs.c.submitted_at.desc(), runs.c.id.desc()).limit(limit)
            return [
                RunSummary(
                    RunId(run_id),
                    from_us(submitted_at),
                    decode_map(summary),
                    {name: (step, value) for name, (step, value) in decode_map(logged).items()},
                    decode_extremes(known_extremes),
                )
                for run_id, submitted_at, summary, logged, known_extremes in conn.execute(newest)
            ]

        return await self._database.read(read)


def _record_saved(conn: Connection, checkpoint: Checkpoint) -> None:
    """Records that the work of the attempt up to now is saved, so that a preemption costs less.

    If the checkpoint is further than the start of the attempt, earlier losses no longer count. For one of
    the script itself, `record_run_folder` decides that.
    """
    stamp = WriteStamp(conn)
    live = update(attempts).where(attempts.c.id == checkpoint.attempt, IS_LIVE)
    if conn.execute(live.values(saved_at=to_us(checkpoint.created_at), touched=stamp.now)).rowcount:
        if checkpoint.path:
            return
        start_step = (
            select(func.coalesce(attempts.c.resumed_from_step, -1))
            .where(attempts.c.id == checkpoint.attempt)
            .scalar_subquery()
        )
        conn.execute(
            update(runs)
            .where(runs.c.id == checkpoint.run, runs.c.losses > 0, start_step < checkpoint.step)
            .values(losses=0)
        )
        stamp.touch("attempts")
        stamp.write()


def _get_run_row(conn: Connection, run: RunId) -> Row[str, str, bool, int]:
    row = conn.execute(_SELECT_EXISTING, {"b_id": run}).one_or_none()
    if row is None:
        raise _not_found_error(run)
    return row


def _check_not_superseded(conn: Connection, run: RunId, attempt: AttemptId | None) -> None:
    """Raises NotFound, and Conflict if the run has a later attempt than this."""
    check_not_superseded(attempt, _get_run_row(conn, run).attempts, run=run)


def _not_found_error(run: RunId) -> NotFound:
    return NotFound(f"no run has the id {run}", hints=("list the runs with `hop ps --all`",))
