"""Runs and their records, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from hopyard.domain.attempt import AttemptPhase, Exit
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, Digest, RunId, RunName, attempt_id, split_attempt
from hopyard.domain.metric_extremes import Extremes, StepValue
from hopyard.domain.notification import END_KEY, Notification, NotifyOn
from hopyard.domain.run import (
    Attempt,
    ParamValue,
    Run,
    RunEvent,
    RunEventKind,
    RunPhase,
    check_not_superseded,
)
from hopyard.domain.run_query import RunValues, run_values
from hopyard.domain.run_values import merge_values
from hopyard.domain.script_tags import ScriptTags, apply_script_tags
from hopyard.domain.spec_summary import summarise_spec, truncate_values
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.run_store import (
    MAX_UNSTORED_MESSAGES,
    AttemptFilter,
    NewRun,
    RunAttempt,
    RunFilter,
    RunSummary,
)
from hopyard.stores.memory.filters import matches, older_than
from hopyard.stores.memory.rows import AttemptRow, RunRow, checkpoint_key
from hopyard.stores.memory.state import MemoryState

_OFFLINE_PHASES = {
    AttemptPhase.SUCCEEDED: RunPhase.SUCCEEDED,
    AttemptPhase.FAILED: RunPhase.FAILED,
    AttemptPhase.LOST: RunPhase.FAILED,
    AttemptPhase.STOPPED: RunPhase.CANCELLED,
}


class MemoryRunStore:
    """Implements `hopyard.interfaces.run_store.RunStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def create(self, runs: Sequence[NewRun], /, *, now: datetime) -> Sequence[Run]:
        for new_run in runs:
            existing = self._state.runs.get(new_run.id)
            if existing is not None and (existing.name.user, existing.submitted_spec) != (
                new_run.user,
                new_run.spec,
            ):
                raise Conflict(
                    f"another run has the id {new_run.id}", hints=("submit it again under a new id",)
                )
        return [
            self._to_run(self._state.runs.get(new_run.id) or self._add_row(new_run, now)) for new_run in runs
        ]

    def _add_row(self, new: NewRun, now: datetime) -> RunRow:
        state, spec = self._state, new.spec
        number = state.numbers[new.user, spec.project] = state.numbers.get((new.user, spec.project), 0) + 1
        gang = spec.to_gang(new.id, new.user, submitted_at=now)
        gang = replace(gang, roles=state.share_roles(gang.roles))
        row = RunRow(
            new.id, RunName(new.user, spec.project, number), spec, spec, gang, now, params=spec.params
        )
        row.run_folder = spec.initial_folder
        for target in spec.on_end:
            if any(target.gets(event) for event in NotifyOn if event is not NotifyOn.ALERT):
                row.notifications[END_KEY, target.to] = Notification(new.id, END_KEY, target.to, now)
        state.runs[new.id] = row
        state.by_name[row.name] = new.id
        if new.offline:
            row.offline, row.phase = True, RunPhase.RUNNING
        else:
            state.add_pending(row.gang)
        state.mark_changed()
        return row

    async def get(self, run: RunId, /) -> Run:
        return self._to_run(self._get_row(run))

    async def find_existing(self, runs: Sequence[RunId], /) -> frozenset[RunId]:
        return frozenset(self._state.runs.keys() & set(runs))

    async def find_by_name(self, name: RunName, /) -> Run | None:
        run = self._state.by_name.get(name)
        return None if run is None else self._to_run(self._state.runs[run])

    async def list(self, where: RunFilter, /) -> Sequence[Run]:
        """Returns the matching runs, newest first."""
        runs = self._state.runs
        rows = runs.values() if where.ids is None else [runs[run] for run in where.ids if run in runs]
        newest = sorted(rows, key=lambda row: (row.submitted_at, row.id), reverse=True)
        if where.before is not None:
            cursor = self._state.runs.get(where.before)
            newest = [row for row in newest if older_than(row, where.before, cursor)]
        matching = [self._to_run(row) for row in newest if matches(row, where)][: max(where.limit, 0)]
        return [_truncated(run) for run in matching] if where.brief else matching

    async def query_values(
        self, where: RunFilter, /, *, now: datetime | None
    ) -> Sequence[tuple[RunId, RunValues]]:
        latest = self._state.runs
        return [
            (run.id, run_values(run, latest[run.id].latest_metrics, now=now))
            for run in await self.list(where)
        ]

    async def count_by_phase(self) -> Mapping[RunPhase, int]:
        return dict(
            Counter(
                row.shown_phase for row in self._state.runs.values() if row.phase.is_final or not row.offline
            )
        )

    async def count_trials(self, studies: Sequence[RunId], /) -> Mapping[RunId, Mapping[RunPhase, int]]:
        counters: dict[RunId, Counter[RunPhase]] = {}
        for row in self._state.runs.values():
            parent = row.spec.parent
            if parent is not None and parent in studies:
                counters.setdefault(parent, Counter())[row.shown_phase] += 1
        return {study: dict(counts) for study, counts in counters.items()}

    async def list_orphans(self) -> Sequence[RunId]:
        rows = self._state.runs
        return [
            row.id
            for row in rows.values()
            if row.spec.parent is not None
            and not row.phase.is_final
            and (row.spec.parent not in rows or rows[row.spec.parent].phase.is_final)
        ]

    async def attempts(self, run: RunId, /) -> Sequence[Attempt]:
        return [attempt.to_attempt() for attempt in self._get_row(run).attempts]

    async def attempts_between(self, where: AttemptFilter, /) -> Sequence[RunAttempt]:
        found = [
            RunAttempt(row.id, row.name, row.gang.queue, attempt)
            for row in self._state.runs.values()
            if where.queues is None or row.gang.queue in where.queues
            for attempt in (each.to_attempt() for each in row.attempts)
            if attempt.placed_at < where.until
            and (attempt.ended_at is None or attempt.ended_at > where.since)
            and (where.node is None or where.node in attempt.nodes)
            and (where.before is None or (attempt.placed_at, attempt.id) < where.before)
        ]
        found.sort(key=lambda each: (each.attempt.placed_at, each.attempt.id), reverse=True)
        return found[: where.limit]

    async def events(
        self, run: RunId, /, *, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> Sequence[RunEvent]:
        events = self._get_row(run).events[after:]
        return (
            events if limit is None else events[max(0, len(events) - limit) :] if newest else events[:limit]
        )

    async def events_of(
        self, runs: Sequence[RunId], kind: RunEventKind, /
    ) -> Mapping[RunId, Sequence[RunEvent]]:
        rows = (self._state.runs[run] for run in runs if run in self._state.runs)
        found = {row.id: [event for event in row.events if event.kind is kind] for row in rows}
        return {run: events for run, events in found.items() if events}

    async def record_event(self, run: RunId, event: RunEvent, /) -> None:
        row = self._get_row(run)
        if event not in row.events:
            row.events.append(event)

    async def set_starred(self, run: RunId, user: str, starred: bool, /) -> None:
        row = self._get_row(run)
        (row.starred_by.add if starred else row.starred_by.discard)(user)

    async def starred_of(self, user: str, runs: Sequence[RunId], /) -> frozenset[RunId]:
        rows = self._state.runs
        return frozenset(run for run in runs if run in rows and user in rows[run].starred_by)

    async def delete(self, run: RunId, /) -> None:
        row = self._get_row(run)
        if not (row.phase.is_final or row.offline):
            raise Conflict("the run has not ended", hints=("stop it first: hop stop",))
        del self._state.runs[run], self._state.by_name[row.name]

    async def record_params(
        self, run: RunId, params: Mapping[str, ParamValue], /, *, attempt: AttemptId | None = None
    ) -> None:
        row = self._get_row_for_attempt(run, attempt)
        row.params = merge_values(row.params, params)

    async def record_summary(
        self, run: RunId, values: Mapping[str, float], /, *, attempt: AttemptId | None = None
    ) -> None:
        row = self._get_row_for_attempt(run, attempt)
        row.summary = merge_values(row.summary, values)

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
        row = self._get_row_for_attempt(run, attempt)
        row.latest_metrics = merge_values({} if replace_all else row.latest_metrics, latest)
        known = {} if replace_all else row.extremes
        known = {name: value for name, value in known.items() if name not in latest}
        row.extremes = merge_values(known, extremes or {})

    async def record_extremes(
        self, run: RunId, metric: str, extremes: Extremes, /, *, latest: StepValue
    ) -> None:
        row = self._state.runs.get(run)
        # as texts, since NaN differs from itself
        if row is not None and repr(row.latest_metrics.get(metric)) == repr(latest):
            row.extremes = merge_values(row.extremes, {metric: extremes})

    async def latest_metrics(
        self, runs: Sequence[RunId], /
    ) -> Mapping[RunId, Mapping[str, tuple[int, float]]]:
        rows = self._state.runs
        return {run: rows[run].latest_metrics if run in rows else {} for run in runs}

    async def record_machine_env(
        self, run: RunId, values: Mapping[str, str | None], /, *, attempt: AttemptId | None = None
    ) -> None:
        self._get_row_for_attempt(run, attempt).machine_env = dict(values)

    async def machine_env(self, run: RunId, /) -> Mapping[str, str | None]:
        row = self._state.runs.get(run)
        return {} if row is None else row.machine_env

    async def record_tags(self, run: RunId, new: ScriptTags, /, *, attempt: AttemptId | None = None) -> None:
        row = self._get_row_for_attempt(run, attempt)
        row.spec, row.note, row.script_tags = apply_script_tags(row.spec, row.note, row.script_tags, new)

    async def script_tags(self, run: RunId, /) -> ScriptTags:
        row = self._state.runs.get(run)
        return ScriptTags() if row is None else row.script_tags

    async def record_unstored(self, run: RunId, messages: Sequence[str], /) -> None:
        row = self._get_row(run)
        row.unstored = tuple(dict.fromkeys((*row.unstored, *messages)))[:MAX_UNSTORED_MESSAGES]

    async def record_artifact(
        self, run: RunId, manifest: Digest, /, *, attempt: AttemptId | None = None
    ) -> None:
        self._get_row_for_attempt(run, attempt).artifact = manifest

    async def record_run_folder(
        self, run: RunId, manifest: Digest, size_bytes: int, /, *, attempt: AttemptId, progress: bool = False
    ) -> None:
        row = self._get_row_for_attempt(run, attempt)
        if progress and row.run_folder != manifest:
            row.losses = 0
        row.run_folder, row.run_folder_bytes = manifest, size_bytes

    async def record_lock(
        self, run: RunId, lock: Digest, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        row = self._get_row_for_attempt(run, attempt)
        row.spec = replace(
            row.spec, environment=replace(row.spec.environment, lock=lock, packages=dict(packages))
        )
        row.gang = replace(row.gang, input_digests=row.spec.input_digests)
        if self._state.is_pending(row.gang.id):
            self._state.add_pending(row.gang)
            self._state.mark_changed()

    async def record_packages(
        self, run: RunId, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        row = self._get_row_for_attempt(run, attempt)
        row.spec = replace(row.spec, environment=replace(row.spec.environment, packages=dict(packages)))

    # -- checkpoints -----------------------------------------------------------------------------------------

    async def record_checkpoint(self, checkpoint: Checkpoint, /) -> None:
        row = self._get_row(checkpoint.run)
        new_key = checkpoint_key(checkpoint)
        earlier = next((saved for saved in row.checkpoints if checkpoint_key(saved) == new_key), None)
        if earlier is not None:
            if not checkpoint.replaces(earlier):
                return
            row.checkpoints.remove(earlier)
            row.damaged.discard(new_key)
            checkpoint = replace(checkpoint, kept=checkpoint.kept or earlier.kept)
        row.checkpoints.append(checkpoint)
        # stable: keeps the order within one attempt
        row.checkpoints.sort(key=lambda saved: split_attempt(saved.attempt)[1])
        attempt = row.attempt
        if (
            attempt is not None
            and attempt.id == checkpoint.attempt
            and attempt.id in self._state.live_attempts
        ):
            attempt.saved_at = checkpoint.created_at
            is_later = attempt.resumed_from_step is None or checkpoint.step > attempt.resumed_from_step
            if is_later and not checkpoint.path:
                row.losses = 0
            self._state.add_running(attempt)
            self._state.mark_changed()

    async def checkpoints(
        self, run: RunId, /, *, damaged: bool = False, own: bool = False
    ) -> Sequence[Checkpoint]:
        row = self._get_row(run)
        found = row.all_checkpoints() if damaged else row.intact_checkpoints()
        return found if own else [checkpoint for checkpoint in found if not checkpoint.path]

    async def mark_damaged(self, run: RunId, step: int, detail: str, /, *, now: datetime) -> bool:
        row = self._get_row(run)
        if all(checkpoint.step != step for checkpoint in row.usable_checkpoints()):
            return False
        row.damaged.update(
            checkpoint_key(saved) for saved in row.checkpoints if saved.step == step and not saved.path
        )
        row.events.append(RunEvent(now, RunEventKind.DAMAGED, detail))
        return True

    async def checkpoints_of(self, runs: Sequence[RunId], /) -> Mapping[RunId, Sequence[Checkpoint]]:
        rows = self._state.runs
        checkpoints = {run: rows[run].usable_checkpoints() for run in runs if run in rows}
        return {run: usable for run, usable in checkpoints.items() if usable}

    async def set_checkpoint_kept(self, run: RunId, step: int, kept: bool, /) -> None:
        row = self._get_row(run)
        if all(checkpoint.step != step for checkpoint in row.checkpoints):
            raise NotFound(f"the run has no checkpoint at step {step}")
        row.checkpoints = [
            replace(checkpoint, kept=kept) if checkpoint.step == step else checkpoint
            for checkpoint in row.checkpoints
        ]

    async def delete_checkpoints(
        self, run: RunId, steps: Sequence[int], /, *, own: bool | None = None
    ) -> None:
        row = self._state.runs.get(run)
        if row is not None:
            row.checkpoints = [
                checkpoint
                for checkpoint in row.checkpoints
                if checkpoint.step not in steps or own not in (None, bool(checkpoint.path))
            ]

    # -- ends ------------------------------------------------------------------------------------------------

    async def record_synced(self, run: RunId, at: datetime, /) -> None:
        row = self._state.runs.get(run)
        if row is not None and row.offline and not row.attempts:
            row.synced_at = at

    async def finish_offline(
        self, run: RunId, phase: AttemptPhase, exit: Exit, /, *, started_at: datetime, ended_at: datetime
    ) -> None:
        if phase not in _OFFLINE_PHASES:
            raise SpecError(
                f"phase: an offline run cannot end in phase `{phase}`",
                hints=(f"use one of {', '.join(_OFFLINE_PHASES)}",),
            )
        row = self._get_row(run)
        if not row.offline:
            raise Conflict("the run was not recorded offline")
        if row.attempts:
            return
        row.set_phase(_OFFLINE_PHASES[phase])
        no_placement = Placement(row.gang, ())
        row.attempts.append(
            AttemptRow(
                attempt_id(run, 1),
                1,
                no_placement,
                {},
                "",
                started_at,
                phase,
                started_at=started_at,
                ended_at=ended_at,
                exit=exit,
            )
        )
        row.exit, row.started_at, row.ended_at = exit, started_at, ended_at

    async def list_summaries(
        self, dataset: str, /, *, limit: int, latest: bool = False, extremes: bool = False
    ) -> Sequence[RunSummary]:
        newest = sorted(self._state.runs.values(), key=lambda row: (row.submitted_at, row.id), reverse=True)
        rows = [
            row
            for row in newest
            if (row.summary or (latest and row.latest_metrics))
            and any(ref.name == dataset for ref in row.spec.datasets)
        ]
        return [
            RunSummary(
                row.id,
                row.submitted_at,
                row.summary,
                dict(row.latest_metrics) if latest else {},
                dict(row.extremes) if extremes else {},
            )
            for row in rows[:limit]
        ]

    def _to_run(self, row: RunRow) -> Run:
        return row.to_run(self._state.hold_of(row), self._state.promises.get(row.gang.id))

    def _get_row_for_attempt(self, run: RunId, attempt: AttemptId | None) -> RunRow:
        """Returns the row; raises Conflict if the run has a later attempt than this."""
        row = self._get_row(run)
        check_not_superseded(attempt, len(row.attempts), run=run)
        return row

    def _get_row(self, run: RunId) -> RunRow:
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}", hints=("list all runs with `hop ps -a`",))
        return row


def _truncated(run: Run) -> Run:
    return replace(
        run,
        spec=summarise_spec(run.spec),
        params=truncate_values(run.params),
        summary=truncate_values(run.summary),
    )
